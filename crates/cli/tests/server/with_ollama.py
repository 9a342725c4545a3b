"""The official `ollama` client against a server with Pebble: with_ollama.py URL GROUP"""

import json
import random

import jsonschema
import ollama

from checks import COLD, HOT, STOCK, TIMER, check, equal, falls_to, main, raises, url
from schemas import schema

client = ollama.Client(host=url(), timeout=120)
GREEDY = {"temperature": 0}
USER = [{"role": "user", "content": COLD}]
TOOLS = [{"type": "function", "function": function} for function in (STOCK, TIMER)]


def ask(messages=None, **options):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return client.chat(**({"model": "pebble", "messages": messages or USER, "options": GREEDY} | options))


@check("chat")
def models_are_listed_shown_and_loaded():
    (model,) = client.list().models
    assert model.model.startswith("pebble"), model
    assert model.size > 10_000_000 and model.modified_at and model.details.family, model
    shown = client.show(model.model)
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities), shown.capabilities
    assert any(name.endswith("context_length") for name in shown.modelinfo), shown.modelinfo
    (loaded,) = client.ps().models
    equal(loaded.model, model.model)


@check("chat")
def an_answer_is_whole():
    answer = ask()
    equal((answer.message.role, answer.message.content), ("assistant", HOT))
    equal((answer.done, answer.done_reason), (True, "stop"))
    assert answer.prompt_eval_count == 20 and answer.eval_count > 3, answer
    assert answer.total_duration >= answer.eval_duration > 0, answer
    equal(ask(model="pebble:latest").message.content, HOT)


@check("chat")
def a_stream_is_the_same_answer():
    pieces = list(ask(stream=True))
    equal("".join(piece.message.content or "" for piece in pieces), HOT)
    equal([piece.done for piece in pieces], [False] * (len(pieces) - 1) + [True])
    equal(pieces[-1].done_reason, "stop")
    assert pieces[-1].eval_count > 3


@check("chat")
def options_hold():
    short = ask(options={"temperature": 0, "num_predict": 3})
    equal((short.done_reason, short.eval_count), ("length", 3))
    equal(ask(options={"temperature": 0, "stop": [" is"]}).message.content, "The opposite of cold")
    warm = {"temperature": 1.5, "seed": 4, "num_predict": 30}
    equal(ask("Tell me a story.", options=warm).message.content, ask("Tell me a story.", options=warm).message.content)


@check("chat")
def generate_uses_the_template_unless_raw():
    answer = client.generate(model="pebble", prompt=COLD, options=GREEDY)
    equal((answer.response, answer.done_reason), (HOT, "stop"))
    pieces = list(client.generate(model="pebble", prompt=COLD, options=GREEDY, stream=True))
    equal("".join(piece.response for piece in pieces), HOT)
    equal(client.generate(model="pebble", prompt=COLD, system="You are Pebble.", options=GREEDY).response, HOT)
    raw = client.generate(model="pebble", prompt="The opposite of", raw=True, options={"temperature": 0, "num_predict": 4})
    equal(raw.prompt_eval_count, 3)
    # No prompt: a client asks whether the model is there.
    equal(client.generate(model="pebble").done_reason, "load")
    equal(client.generate(model="pebble", keep_alive=0).done_reason, "unload")


@check("chat")
def a_last_message_by_the_assistant_is_continued():
    begun = [*USER, {"role": "assistant", "content": "The opposite of"}]
    equal(ask(begun).message.content, " cold is hot.")
    equal("".join(piece.message.content for piece in ask(begun, stream=True)), " cold is hot.")


@check("chat")
def thinking_is_set_apart():
    answer = ask("What is 17 + 25?", think=True)
    assert "42" in answer.message.thinking and "42" in answer.message.content, answer
    pieces = list(ask("What is 17 + 25?", think=True, stream=True))
    equal("".join(piece.message.thinking or "" for piece in pieces), answer.message.thinking)
    assert not ask("What is 17 + 25?", think=False).message.thinking
    generated = client.generate(model="pebble", prompt="What is 17 + 25?", think=True, options=GREEDY)
    equal(generated.thinking, answer.message.thinking)


@check("tools")
def a_tool_makes_a_round_trip():
    messages = [{"role": "user", "content": "What is the stock price of RMHF?"}]
    answer = ask(messages, tools=TOOLS)
    (call,) = answer.message.tool_calls
    equal((call.function.name, call.function.arguments), ("stock_price", {"stock": "RMHF"}))
    messages += [answer.message, {"role": "tool", "tool_name": "stock_price", "content": '{"price": 161.75}'}]
    equal(ask(messages, tools=TOOLS).message.content, "The price of RMHF is 161.75.")
    pieces = list(ask("Start a timer of 10 minutes.", tools=TOOLS, stream=True))
    (call,) = [call for piece in pieces for call in piece.message.tool_calls or []]
    equal((call.function.name, call.function.arguments), ("start_timer", {"minutes": 10}))


@check("tools")
def a_python_function_is_a_tool():
    def stock_price(stock: str) -> str:
        """Get the price of a stock.

        Args:
          stock: Stock symbol
        """

    (call,) = ask("What is the stock price of RMHF?", tools=[stock_price]).message.tool_calls
    equal((call.function.name, call.function.arguments), ("stock_price", {"stock": "RMHF"}))


@check("tools")
def a_format_is_kept_to():
    for seed in range(10):
        made, bound = schema(random.Random(1000 + seed))
        answer = ask("Answer in JSON.", format=made, options={"temperature": 1, "seed": seed, "num_predict": 2 * bound + 64})
        equal(answer.done_reason, "stop")
        jsonschema.validate(json.loads(answer.message.content), made)
    json.loads(ask("Grizumn is 81 years old and lives in Prague. Return name and city as JSON.", format="json").message.content)
    made, bound = schema(random.Random(1))
    generated = client.generate(model="pebble", prompt="Answer in JSON.", format=made, options={"num_predict": 2 * bound + 64})
    jsonschema.validate(json.loads(generated.response), made)


@check("tools")
def a_format_has_the_properties_it_lists_and_no_others():
    # As Pydantic writes it: nothing is said of further properties.
    made = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
    for seed in range(10):
        options = {"temperature": 1, "seed": seed, "num_predict": 400}
        answer = ask("Grizumn is 81 years old and lives in Prague. Return it as JSON.", format=made, options=options)
        equal((answer.done_reason, list(json.loads(answer.message.content))), ("stop", ["name"]))


@check("errors")
def errors_have_the_shape_of_this_dialect():
    error = raises(ollama.ResponseError, lambda: ask(options={"top_p": 7}), "options.top_p: must be 0 to 1")
    equal(error.status_code, 400)
    raises(ollama.ResponseError, lambda: ask(options={"repeat_penalty": 0}), "options.repeat_penalty: ")
    raises(ollama.ResponseError, lambda: client.generate(model="pebble", prompt=COLD, context=[1, 2]), "context: ", "/api/chat")
    equal(raises(ollama.ResponseError, lambda: ask([{"role": "wizard", "content": "x"}]), "role").status_code, 400)
    equal(raises(ollama.ResponseError, lambda: ask("one two three " * 10_000), "context").status_code, 400)
    equal(raises(ollama.ResponseError, lambda: client.show("no-such-model")).status_code, 404)
    raises(ollama.ResponseError, lambda: client.pull("other"))
    equal(client.pull("pebble").status, "success")
    equal([line.status for line in client.pull("pebble:latest", stream=True)][-1], "success")


@check("errors")
def who_leaves_stops_generating():
    stream = ask("Tell me a story.", stream=True, options={"temperature": 2, "num_predict": 2000})
    next(stream)
    stream.close()
    falls_to("requests_active", 0, 1)


if __name__ == "__main__":
    main()
