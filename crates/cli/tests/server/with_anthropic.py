"""The official `anthropic` client against a server with Pebble: with_anthropic.py URL GROUP"""

import anthropic

from checks import COLD, HEATING, HOT, STOCK, check, equal, falls_to, main, raises, url

client = anthropic.Anthropic(base_url=url(), api_key="none", max_retries=0, timeout=120)
USER = [{"role": "user", "content": COLD}]
TOOLS = [{"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
         for tool in (STOCK, HEATING)]
GREEDY = {"extra_body": {"temperature": 0}}


def options(messages=None, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": "pebble", "messages": messages or USER, "max_tokens": 200} | GREEDY | more


def ask(messages=None, **more):
    return client.messages.create(**options(messages, **more))


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


@check("messages")
def an_answer_is_whole():
    message = ask()
    equal((message.type, message.role, text_of(message)), ("message", "assistant", HOT))
    equal((message.stop_reason, message.stop_sequence), ("end_turn", None))
    equal((message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)), 20)
    assert message.usage.output_tokens > 3


@check("messages")
def system_and_content_blocks_are_read():
    blocks = [{"type": "text", "text": "What's the opposite "}, {"type": "text", "text": "of cold?"}]
    equal(text_of(ask([{"role": "user", "content": blocks}])), HOT)
    for system in ("You are Pebble.", [{"type": "text", "text": "You are Pebble.", "cache_control": {"type": "ephemeral"}}]):
        equal(text_of(ask(system=system)), HOT)


@check("messages")
def the_stream_of_the_client_builds_the_same_message():
    question = "Tell me a story about a fox and a lantern."
    whole = ask(question, max_tokens=100)
    with client.messages.stream(**options(question, max_tokens=100)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 10, "it did not come piece by piece"
    equal("".join(pieces), text_of(whole))
    equal((text_of(final), final.stop_reason), (text_of(whole), whole.stop_reason))
    equal(final.usage.output_tokens, whole.usage.output_tokens)


@check("messages")
def events_come_in_order():
    events = [event.type for event in client.messages.create(stream=True, **options()) if event.type != "ping"]
    equal(events[:2], ["message_start", "content_block_start"])
    equal(events[-3:], ["content_block_stop", "message_delta", "message_stop"])
    equal(set(events[2:-3]), {"content_block_delta"})


@check("messages")
def limits_and_stop_sequences_end_an_answer():
    short = ask(max_tokens=3)
    equal((short.stop_reason, short.usage.output_tokens), ("max_tokens", 3))
    stopped = ask(stop_sequences=["nothing", " is hot"])
    equal((text_of(stopped), stopped.stop_reason, stopped.stop_sequence),
          ("The opposite of cold", "stop_sequence", " is hot"))


@check("messages")
def thinking_has_its_own_block():
    more = dict(messages="What is 17 + 25?", max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    message = ask(**more)
    equal([block.type for block in message.content], ["thinking", "text"])
    assert "42" in message.content[0].thinking and "42" in text_of(message)
    with client.messages.stream(**options(**more)) as stream:
        final = stream.get_final_message()
    equal([block.type for block in final.content], ["thinking", "text"])
    equal(final.content[0].thinking, message.content[0].thinking)
    # Blocks of thinking come back with the next turn.
    history = [{"role": "user", "content": "What is 17 + 25?"},
               {"role": "assistant", "content": [block.to_dict() for block in message.content]}, *USER]
    equal(text_of(ask(history)), HOT)
    equal([block.type for block in ask("What is 17 + 25?", thinking={"type": "disabled"}).content], ["text"])


@check("messages")
def thinking_can_be_left_out_of_the_answer():
    more = dict(messages="What is 17 + 25?", max_tokens=2000, thinking={"type": "adaptive", "display": "omitted"})
    message = ask(**more)
    with client.messages.stream(**options(**more)) as stream:
        deltas = [event.delta.type for event in stream if event.type == "content_block_delta"]
        final = stream.get_final_message()
    assert "thinking_delta" not in deltas and "signature_delta" in deltas, deltas
    for answer in (message, final):
        equal([block.type for block in answer.content], ["thinking", "text"])
        equal(answer.content[0].thinking, "")
        assert answer.content[0].signature and "42" in text_of(answer), answer


@check("messages")
def a_prompt_is_remembered_for_no_tokens():
    def numbers(sentence):
        return [{"role": "user", "content": f"{sentence} " * 40 + COLD}]
    for sentence, warm in (
        ("One and two are three.", lambda messages: ask(messages, max_tokens=0)),
        ("Three and four are seven.",
         lambda messages: list(client.messages.create(stream=True, **options(messages, max_tokens=0)))),
    ):
        messages = numbers(sentence)
        answer = warm(messages)
        if isinstance(answer, list):
            equal([event.type for event in answer if event.type != "ping"],
                  ["message_start", "message_delta", "message_stop"])
            stop_reason, usage = answer[-2].delta.stop_reason, answer[-2].usage
        else:
            equal(answer.content, [])
            stop_reason, usage = answer.stop_reason, answer.usage
        equal((stop_reason, usage.output_tokens), ("max_tokens", 0))
        later = ask(messages, max_tokens=3).usage
        tokens = later.input_tokens + later.cache_read_input_tokens
        equal(usage.input_tokens + usage.cache_read_input_tokens, tokens)
        assert usage.cache_read_input_tokens * 10 < tokens < later.cache_read_input_tokens * 10 / 9, (usage, later)


@check("messages")
def tokens_are_counted():
    equal(client.messages.count_tokens(model="pebble", messages=USER).input_tokens, 20)
    assert client.messages.count_tokens(model="pebble", messages=USER, tools=TOOLS).input_tokens > 100


@check("messages")
def models_are_listed_and_shown():
    (model,) = client.models.list()
    equal((model.id, model.type, model.display_name), ("pebble", "model", "pebble"))
    assert model.created_at.year > 2000, model
    equal(client.models.retrieve(model.id).created_at, model.created_at)


@check("messages")
def a_last_message_by_the_assistant_is_continued():
    equal(text_of(ask([*USER, {"role": "assistant", "content": "The opposite of"}])), " cold is hot.")
    equal(text_of(ask([*USER, {"role": "assistant", "content": ""}])), HOT)


@check("tools")
def a_tool_makes_a_round_trip():
    history = [{"role": "user", "content": "What is the stock price of RMHF?"}]
    message = ask(history, tools=TOOLS)
    equal(message.stop_reason, "tool_use")
    (use,) = [block for block in message.content if block.type == "tool_use"]
    equal((use.name, use.input), ("stock_price", {"stock": "RMHF"}))
    history += [{"role": "assistant", "content": [block.to_dict() for block in message.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": '{"price": 161.75}'}]}]
    equal(text_of(ask(history, tools=TOOLS)), "The price of RMHF is 161.75.")


@check("tools")
def an_image_that_a_tool_returned_does_not_lock_the_conversation():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    history = [{"role": "user", "content": "Read a.png."},
               {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "read", "input": {}}]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [image]}]},
               {"role": "assistant", "content": "I read text only."}, *USER]
    equal(ask(history, max_tokens=3).type, "message")
    raises(anthropic.BadRequestError, lambda: ask([{"role": "user", "content": [image]}]),
           "messages[0].content[0].type: this model reads text only, not image")


@check("tools")
def calls_are_streamed_and_typed():
    with client.messages.stream(**options("Set the bathroom to 19 degrees.", tools=TOOLS)) as stream:
        final = stream.get_final_message()
    (use,) = [block for block in final.content if block.type == "tool_use"]
    equal((use.name, use.input), ("heating", {"room": "bathroom", "degrees": 19}))
    equal(final.stop_reason, "tool_use")


@check("tools")
def a_call_that_is_cut_off_is_the_same_streamed_and_whole():
    inputs = []
    for limit in range(4, 48, 2):
        more = options("Set the bathroom to 19 degrees.", tools=TOOLS, max_tokens=limit)
        whole = client.messages.create(**more)
        with client.messages.stream(**more) as stream:
            final = stream.get_final_message()
        uses = [[block.input for block in message.content if block.type == "tool_use"] for message in (whole, final)]
        equal(uses[0], uses[1])
        inputs += [use for use in uses[0] if whole.stop_reason == "max_tokens"]
    assert {"room": "bathroom"} in inputs, inputs


@check("tools")
def a_choice_of_tools_holds():
    for choice, name in (({"type": "any"}, None), ({"type": "tool", "name": "heating"}, "heating")):
        message = ask(tools=TOOLS, tool_choice=choice, max_tokens=400)
        use = next(block for block in message.content if block.type == "tool_use")
        equal(use.name, name or use.name)
        equal(message.stop_reason, "tool_use")
    equal(text_of(ask(tools=TOOLS, tool_choice={"type": "auto"})), HOT)
    none = ask("What is the stock price of RMHF?", tools=TOOLS, tool_choice={"type": "none"})
    equal({block.type for block in none.content}, {"text"})


@check("errors")
def errors_have_the_shape_of_this_dialect():
    error = raises(anthropic.BadRequestError, lambda: ask(extra_body={"temperature": "hot"}), "temperature")
    equal((error.body["type"], error.body["error"]["type"]), ("error", "invalid_request_error"))
    raises(anthropic.BadRequestError, lambda: ask([{"role": "wizard", "content": "x"}]), "role")
    raises(anthropic.BadRequestError, lambda: client.post(
        "/v1/messages", body={"model": "pebble", "messages": USER}, cast_to=object), "max_tokens")
    raises(anthropic.BadRequestError, lambda: ask("one two three " * 10_000), "prompt is too long: ", " tokens > ", " maximum")
    raises(anthropic.NotFoundError, lambda: client.post("/v1/messages/nowhere", body={}, cast_to=object))
    error = raises(anthropic.NotFoundError, lambda: client.models.retrieve("nobody"), "nobody")
    equal((error.body["type"], error.body["error"]["type"]), ("error", "not_found_error"))
    equal(error.body["request_id"], error.request_id)


@check("errors")
def who_leaves_stops_generating():
    stream = client.messages.create(stream=True, **options("Tell me a story.", max_tokens=2000))
    for _, event in zip(range(8), stream):
        assert event.type != "message_stop", "the story is too short to leave"
    stream.close()
    falls_to("requests_active", 0, 1)


@check("key")
def a_key_is_asked_for_in_either_header():
    raises(anthropic.AuthenticationError, ask, "key")
    error = raises(anthropic.AuthenticationError, client.models.list, "key")
    equal((error.body["type"], error.body["error"]["type"]), ("error", "authentication_error"))
    for options in ({"api_key": "sesame"}, {"api_key": None, "auth_token": "sesame"}):
        with_key = anthropic.Anthropic(base_url=url(), max_retries=0, **options)
        equal(text_of(with_key.messages.create(model="pebble", messages=USER, max_tokens=50, **GREEDY)), HOT)


if __name__ == "__main__":
    main()
