"""What a person needs once the stack is ready: where everything is, and a first call."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from antiphon_server.stack.settings import Role
from antiphon_server.stack.stack import Stack

CURL = """\
curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{{
  "model": "{model}", "conversation_id": "demo", "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
PYTHON = """\
import antiphon, antiphon_openai, openai

client = antiphon_openai.wrap(openai.OpenAI(base_url="{url}/v1", api_key="none"))
with antiphon.conversation("demo"):
    messages = [{{"role": "user", "content": "Hello"}}]
    print(client.chat.completions.create(model="{model}", messages=messages).choices[0].message.content)"""


def addresses(stack: Stack) -> RenderableType:
    """Table of the processes, and examples where there is a router."""
    table = Table("process", "URL", "log", box=None, padding=(0, 2), header_style="dim", pad_edge=False)
    for spec in sorted(stack.specs, key=lambda spec: spec.role is not Role.ROUTER):
        base = f"{spec.url}/v1" if spec.role is Role.ROUTER else spec.url
        # Not wrapped: paths and addresses are there to be copied.
        table.add_row(spec.name, Text(base, no_wrap=True), Text(str(spec.log), no_wrap=True, overflow="fold"))
    if not stack.settings.router or stack.model is None:
        return table
    words = {"url": stack.router_url, "model": stack.model.name}
    return Group(
        table,
        Padding(Syntax(CURL.format(**words), "bash", background_color="default"), (1, 0, 0, 0)),
        Padding(Syntax(PYTHON.format(**words), "python", background_color="default"), (1, 0, 1, 0)),
        Text("Ctrl-C stops everything.", style="dim"),
    )
