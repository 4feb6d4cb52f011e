"""Researchers that work at the same time, and an editor who sums up what they found.

    python examples/openai_fan_out.py --base-url http://localhost:8000/v1

Each researcher is a child conversation: agents that took turns under one id would overwrite each other's KV.
The editor's is their parent, and leaving its block ends them all, whatever went wrong inside.
"""

from __future__ import annotations

import argparse
import asyncio
import os

from openai import AsyncOpenAI

import antiphon
import antiphon_openai

ANGLES = ["history", "prices", "risks"]
STEPS = ["Note down what matters.", "What is missing in your notes?", "Sum up in two sentences."]


async def say(client: AsyncOpenAI, model: str, turn: antiphon.Turn, words: str) -> str:
    """One question more in a turn's history, and its answer."""
    turn.add_user(words)
    reply = await client.chat.completions.create(
        model=model, messages=turn.messages, max_tokens=120, temperature=0
    )
    turn.add_reply(reply)
    return reply.choices[0].message.content or ""


async def research(client: AsyncOpenAI, model: str, conversation: antiphon.Conversation, topic: str) -> str:
    """What a researcher has to say of a topic, after some steps."""
    async with conversation:
        turn = conversation.turn([{"role": "system", "content": f"You research {topic}."}])
        for step in STEPS:
            found = await say(client, model, turn, step)
        return found


async def main() -> None:
    arguments = argparse.ArgumentParser(description="Researchers in parallel, and an editor who sums up.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument("topic", nargs="?", default="the market for door hinges")
    given = arguments.parse_args()

    client = AsyncOpenAI(base_url=given.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    async with antiphon_openai.wrap(client), antiphon.conversation() as editor:
        model = given.model or (await client.models.list()).data[0].id
        turn = editor.turn([{"role": "system", "content": "You edit a report. Be brief."}])
        outline = await say(client, model, turn, f"Outline a report on {given.topic}.")
        print(f"outline: {outline}")
        researchers = [editor.child(angle) for angle in ANGLES]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(research(client, model, researcher, f"{angle} of {given.topic}"))
                for angle, researcher in zip(ANGLES, researchers, strict=True)
            ]
        notes = "\n".join(f"{angle}: {task.result()}" for angle, task in zip(ANGLES, tasks, strict=True))
        report = await say(client, model, turn, f"Write it, from these notes:\n{notes}")
        print(f"{notes}\nreport: {report}")
        for name, conversation in zip(["editor", *ANGLES], [editor, *researchers], strict=True):
            reuse = conversation.statistics
            print(f"{name}: reused {reuse.matched_tokens} of {reuse.prompt_tokens} prompt tokens")


if __name__ == "__main__":
    asyncio.run(main())
