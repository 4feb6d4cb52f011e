"""What a person needs once the stack is ready: where everything is, and a first call."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.syntax import Syntax
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
    """The processes, and examples where there is a router. All of it is there to be copied: a console that
    wraps softly cuts text nowhere, but tables and blocks of code at its width."""
    rows = [("process", "URL", "log")]
    for spec in sorted(stack.specs, key=lambda spec: spec.role is not Role.ROUTER):
        base = f"{spec.url}/v1" if spec.role is Role.ROUTER else spec.url
        rows.append((spec.name, base, str(spec.log)))
    first, second = (max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    lines = [f"{name:{first}}{url:{second}}{log}" for name, url, log in rows]
    table = Group(Text(lines[0], style="dim"), Text("\n".join(lines[1:])))
    if not stack.settings.router or stack.model is None:
        return table
    words = {"url": stack.router_url, "model": stack.model.name}
    examples = (("bash", CURL), ("python", PYTHON))
    code = [
        Syntax("", lexer, background_color="default").highlight(text.format(**words))
        for lexer, text in examples
    ]
    return Group(table, Text(), *code, Text("Ctrl-C stops everything.", style="dim"))
