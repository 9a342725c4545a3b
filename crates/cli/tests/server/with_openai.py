"""The official `openai` client against a server with Pebble: with_openai.py URL GROUP"""

import concurrent.futures
import json
import math
import random

import jsonschema
import openai
import pydantic

from checks import COLD, ENDLESS, HEATING, HOT, STOCK, check, equal, falls_to, main, raises, url
from schemas import schema

client = openai.OpenAI(base_url=url() + "/v1", api_key="none", max_retries=0, timeout=120)
chat = client.chat.completions
USER = [{"role": "user", "content": COLD}]
TOOLS = [{"type": "function", "function": function} for function in (STOCK, HEATING)]


def ask(messages=None, **options):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return chat.create(**({"model": "pebble", "messages": messages or USER, "temperature": 0} | options))


def streamed(**options):
    return list(ask(stream=True, **options))


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@check("chat")
def models_are_listed_with_their_context():
    models = client.models.list().data
    equal([model.id for model in models], ["pebble"])
    assert models[0].context_length >= 4096, models[0]
    equal(client.models.retrieve("pebble").id, "pebble")


@check("chat")
def an_answer_is_whole():
    answer = ask()
    choice = answer.choices[0]
    equal(answer.object, "chat.completion")
    equal((choice.message.role, choice.message.content, choice.finish_reason), ("assistant", HOT, "stop"))
    equal(choice.message.tool_calls, None)
    usage = answer.usage
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    equal(usage.prompt_tokens, 20)
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens
    details = usage.completion_tokens_details
    assert 0 <= details.accepted_prediction_tokens <= usage.completion_tokens
    assert details.rejected_prediction_tokens >= 0


@check("chat")
def content_may_come_in_parts_and_from_other_roles():
    parts = [{"type": "text", "text": "What's the opposite "}, {"type": "text", "text": "of cold?"}]
    equal(ask([{"role": "user", "content": parts}]).choices[0].message.content, HOT)
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "You are Pebble, a helpful assistant."}, *USER]
        equal(ask(messages).choices[0].message.content, HOT)


@check("chat")
def a_stream_is_the_same_answer_in_order():
    whole = ask("Tell me a story about a fox and a lantern.", max_tokens=120)
    chunks = streamed(messages="Tell me a story about a fox and a lantern.", max_tokens=120,
                      stream_options={"include_usage": True})
    equal(len({chunk.id for chunk in chunks}), 1)
    equal({chunk.object for chunk in chunks}, {"chat.completion.chunk"})
    *body, last = chunks
    equal(last.choices, [])
    equal(last.usage.completion_tokens, whole.usage.completion_tokens)
    equal(last.usage.prompt_tokens, whole.usage.prompt_tokens)
    assert all(chunk.usage is None for chunk in body)
    equal([chunk.choices[0].delta.role for chunk in body if chunk.choices[0].delta.role], ["assistant"])
    equal(body[0].choices[0].delta.role, "assistant")
    equal([chunk.choices[0].finish_reason for chunk in body[:-1]], [None] * (len(body) - 1))
    equal(body[-1].choices[0].finish_reason, whole.choices[0].finish_reason)
    equal(text_of(body), whole.choices[0].message.content)
    assert len(body) > 10, "it did not come piece by piece"


@check("chat")
def without_being_asked_for_a_stream_has_no_usage():
    chunks = streamed()
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    equal(text_of(chunks), HOT)


@check("chat")
def the_stream_of_the_client_itself_agrees():
    with chat.stream(model="pebble", messages=USER, temperature=0) as stream:
        for _ in stream:
            pass
        equal(stream.get_final_completion().choices[0].message.content, HOT)


@check("chat")
def limits_and_stop_texts_end_an_answer():
    for field in ("max_tokens", "max_completion_tokens"):
        answer = ask(**{field: 3})
        equal(answer.choices[0].finish_reason, "length")
        equal(answer.usage.completion_tokens, 3)
        assert HOT.startswith(answer.choices[0].message.content)
    for stop in (" is", [" is", "nothing"], [" is hot"]):
        answer = ask(stop=stop)
        equal((answer.choices[0].message.content, answer.choices[0].finish_reason), ("The opposite of cold", "stop"))
        equal(text_of(streamed(stop=stop)), "The opposite of cold")
    equal(ask(stop="cold is cold").choices[0].message.content, HOT)


@check("chat")
def seeds_repeat_and_choices_differ():
    story = dict(messages="Tell me a story.", temperature=1.5, max_tokens=40, seed=7)
    first, second = ask(n=3, **story), ask(n=3, **story)
    texts = [choice.message.content for choice in first.choices]
    equal([choice.index for choice in first.choices], [0, 1, 2])
    equal([choice.message.content for choice in second.choices], texts)
    equal(len(set(texts)), 3)
    equal(ask(**story).choices[0].message.content, texts[0])
    assert ask(**(story | {"seed": 8})).choices[0].message.content != texts[0]
    pieces = {}
    for chunk in streamed(n=3, **story):
        for choice in chunk.choices:
            pieces[choice.index] = pieces.get(choice.index, "") + (choice.delta.content or "")
    equal([pieces[index] for index in range(3)], texts)


@check("chat")
def logprobs_are_probabilities_of_the_text():
    answer = ask(logprobs=True, top_logprobs=5)
    content = answer.choices[0].logprobs.content
    equal(len(content), answer.usage.completion_tokens)
    equal(b"".join(bytes(token.bytes) for token in content).decode(), HOT)
    for token in content:
        equal(len(token.top_logprobs), 5)
        values = [top.logprob for top in token.top_logprobs]
        equal(values, sorted(values, reverse=True))
        assert sum(map(math.exp, values)) <= 1.0001, values
        # Greedy: the token is its own likeliest.
        equal((token.token, token.logprob), (token.top_logprobs[0].token, values[0]))
        assert token.logprob <= 0
    chunks = streamed(logprobs=True, top_logprobs=5)
    pieces = [token for chunk in chunks if chunk.choices[0].logprobs
              for token in chunk.choices[0].logprobs.content or []]
    equal([(t.token, t.logprob) for t in pieces], [(t.token, t.logprob) for t in content])
    equal(ask(logprobs=True).choices[0].logprobs.content[0].top_logprobs, [])
    equal(ask().choices[0].logprobs, None)


@check("chat")
def a_bias_changes_the_answer():
    hot = next(token for token in ask(logprobs=True).choices[0].logprobs.content if "hot" in token.token)
    ids = client.post("/../tokenize", body={"content": hot.token}, cast_to=object)["tokens"]
    equal(len(ids), 1)
    banned = ask(logit_bias={str(ids[0]): -100}).choices[0].message.content
    assert "hot" not in banned, banned


@check("chat")
def thinking_is_set_apart():
    question = "What is 17 + 25?"
    for extra in ({"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}):
        answer = ask(question, extra_body=extra)
        message = answer.choices[0].message
        assert "42" in message.content and "think>" not in message.content, message
        assert "42" in message.reasoning_content and "think>" not in message.reasoning_content, message
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = list(ask(question, extra_body={"enable_thinking": True}, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    equal("".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas), message.reasoning_content)
    equal(text_of(chunks), message.content)
    equal(getattr(ask(question).choices[0].message, "reasoning_content", None), None)
    choice = ask(question, extra_body={"enable_thinking": True}, logprobs=True).choices[0]
    equal("".join(token.token for token in choice.logprobs.content), choice.message.content)
    assert ask(question, reasoning_effort="high").choices[0].message.reasoning_content


@check("chat")
def completions_are_raw_text():
    complete = client.completions.create
    prompt = "<|im_start|>user\n" + COLD + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    answer = complete(model="pebble", prompt=prompt, temperature=0, max_tokens=32)
    equal((answer.object, answer.choices[0].text, answer.choices[0].finish_reason), ("text_completion", HOT, "stop"))
    equal(answer.usage.prompt_tokens, 20)
    chunks = list(complete(model="pebble", prompt=prompt, temperature=0, max_tokens=32, stream=True))
    equal("".join(chunk.choices[0].text for chunk in chunks), HOT)
    equal(chunks[-1].choices[0].finish_reason, "stop")
    plain = complete(model="pebble", prompt="The opposite of", temperature=0, max_tokens=4, logprobs=2)
    logprobs = plain.choices[0].logprobs
    equal("".join(logprobs.tokens), plain.choices[0].text)
    equal(len(logprobs.token_logprobs), 4)
    equal({len(top) for top in logprobs.top_logprobs}, {2})
    tokens = client.post("/../tokenize", body={"content": "The opposite of"}, cast_to=object)["tokens"]
    equal(complete(model="pebble", prompt=tokens, temperature=0, max_tokens=4).choices[0].text, plain.choices[0].text)


def stock_call(answer):
    (call,) = answer.choices[0].message.tool_calls
    equal((call.type, call.function.name), ("function", "stock_price"))
    equal(json.loads(call.function.arguments), {"stock": "RMHF"})
    equal(answer.choices[0].finish_reason, "tool_calls")
    return call


@check("tools")
def a_tool_is_called_and_its_result_used():
    messages = [{"role": "user", "content": "What is the stock price of RMHF?"}]
    answer = ask(messages, tools=TOOLS)
    call = stock_call(answer)
    assert not answer.choices[0].message.content
    messages += [answer.choices[0].message.to_dict(),
                 {"role": "tool", "tool_call_id": call.id, "content": '{"price": 161.75}'}]
    final = ask(messages, tools=TOOLS).choices[0]
    equal((final.message.content, final.finish_reason), ("The price of RMHF is 161.75.", "stop"))


@check("tools")
def arguments_have_the_types_of_the_schema():
    answer = ask("Set the bathroom to 19 degrees.", tools=TOOLS)
    (call,) = answer.choices[0].message.tool_calls
    equal(json.loads(call.function.arguments), {"room": "bathroom", "degrees": 19})


@check("tools")
def calls_are_streamed_in_pieces_that_fit():
    chunks = streamed(messages="Set the bathroom to 19 degrees.", tools=TOOLS)
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or []]
    equal({piece.index for piece in pieces}, {0})
    equal([piece.function.name for piece in pieces if piece.function.name], ["heating"])
    equal(len([piece.id for piece in pieces if piece.id]), 1)
    equal(json.loads("".join(piece.function.arguments or "" for piece in pieces)), {"room": "bathroom", "degrees": 19})
    equal(chunks[-1].choices[0].finish_reason, "tool_calls")
    equal(text_of(chunks), "")
    with chat.stream(model="pebble", messages=[{"role": "user", "content": "What is the stock price of RMHF?"}],
                     tools=TOOLS, temperature=0) as stream:
        for _ in stream:
            pass
        stock_call(stream.get_final_completion())


@check("tools")
def a_call_that_is_cut_off_stays_open():
    question = "Set the bathroom to 19 degrees."
    whole = ask(question, tools=TOOLS).choices[0].message.tool_calls[0].function.arguments
    cut = []
    for tokens in range(1, 64):
        choice = ask(question, tools=TOOLS, max_tokens=tokens).choices[0]
        assert "<" not in (choice.message.content or ""), choice
        if choice.finish_reason == "tool_calls":
            break
        equal(choice.finish_reason, "length")
        for call in choice.message.tool_calls or []:
            assert whole.startswith(call.function.arguments), call
            # Behind its arguments only marks are missing.
            cut += [call.function.arguments] if call.function.arguments != whole else []
    assert any(len(part) > 10 for part in cut), cut
    # Its history continues.
    call = {"id": "c", "type": "function", "function": {"name": "heating", "arguments": cut[-1]}}
    history = [{"role": "user", "content": question}, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "c", "content": "the arguments are no JSON"}]
    equal(ask(history, tools=TOOLS, max_tokens=4).choices[0].finish_reason, "length")
    answer = client.responses.create(model="pebble", input=question, tools=RESPONSES_TOOLS, temperature=0, max_output_tokens=15)
    (item,) = [item for item in answer.output if item.type == "function_call"]
    equal((answer.status, item.status), ("incomplete", "incomplete"))


@check("tools")
def one_call_is_enough_where_several_are_not_wanted():
    def call(number, stock):
        return {"id": number, "type": "function", "function": {"name": "stock_price", "arguments": json.dumps({"stock": stock})}}

    history = []
    for turn, (one, other) in enumerate((("AAAA", "BBBB"), ("CDEF", "GHIJ"), ("KLMN", "OPQR"))):
        results = [{"role": "tool", "tool_call_id": f"{side}{turn}", "content": json.dumps({"price": price})}
                   for side, price in (("a", 1), ("b", 2))]
        history += [{"role": "user", "content": f"What is the stock price of {one} and {other}?"},
                    {"role": "assistant", "content": None, "tool_calls": [call(f"a{turn}", one), call(f"b{turn}", other)]},
                    *results, {"role": "assistant", "content": f"{one} 1, {other} 2."}]
    history.append({"role": "user", "content": "What is the stock price of RMHF and QQQQ?"})
    # No end, and a liking for calls.
    function = {"name": "stock_price", "description": "Get the current stock price",
                "parameters": {"type": "object", "properties": {"stock": {"type": "string"}}, "required": ["stock"]}}
    wish = {"logit_bias": {"4082": -100, "4085": 4}, "temperature": 0.7, "seed": 0, "max_tokens": 120,
            "tools": [{"type": "function", "function": function}]}
    assert len(ask(history, **wish).choices[0].message.tool_calls) > 1
    choice = ask(history, parallel_tool_calls=False, **wish).choices[0]
    equal((len(choice.message.tool_calls), choice.finish_reason), (1, "tool_calls"))


@check("tools")
def a_choice_of_tools_holds():
    # Nothing in the question wants a tool.
    for tool_choice, name in (("required", None), ({"type": "function", "function": {"name": "heating"}}, "heating")):
        for options in ({}, {"temperature": 1.5, "seed": 3}, {"parallel_tool_calls": False}):
            answer = ask(COLD, tools=TOOLS, tool_choice=tool_choice, max_tokens=400, **options)
            call = answer.choices[0].message.tool_calls[0]
            arguments = json.loads(call.function.arguments)
            equal(call.function.name, name or call.function.name)
            function = next(tool["function"] for tool in TOOLS if tool["function"]["name"] == call.function.name)
            jsonschema.validate(arguments, function["parameters"])
            equal(answer.choices[0].finish_reason, "tool_calls")
    # As zod writes a schema that is used twice.
    place = {"type": "object", "properties": {"row": {"type": "integer", "minimum": 0, "maximum": 99}},
             "required": ["row"], "additionalProperties": False}
    parameters = {"type": "object", "properties": {"from": place, "to": {"$ref": "#/properties/from"}},
                  "required": ["from", "to"], "additionalProperties": False}
    move = {"type": "function", "function": {"name": "move", "parameters": parameters}}
    answer = ask(COLD, tools=[move], tool_choice="required", parallel_tool_calls=False, max_tokens=400)
    jsonschema.validate(json.loads(answer.choices[0].message.tool_calls[0].function.arguments), parameters)
    answer = ask("What is the stock price of RMHF?", tools=TOOLS, tool_choice="none")
    equal((answer.choices[0].message.tool_calls, answer.choices[0].finish_reason), (None, "stop"))
    equal(ask(COLD, tools=TOOLS, tool_choice="auto").choices[0].message.content, HOT)


@check("structured")
def a_hundred_schemas_are_satisfied():
    def one(seed):
        made, bound = schema(random.Random(seed))
        # Every token is at least a byte; the rest is for the white space a model may put in.
        answer = ask(f"Answer in JSON, number {seed}.", max_tokens=2 * bound + 64, seed=seed,
                     temperature=0 if seed % 2 else 1,
                     response_format={"type": "json_schema", "json_schema": {"name": "made", "schema": made, "strict": True}})
        choice = answer.choices[0]
        try:
            equal(choice.finish_reason, "stop")
            jsonschema.validate(json.loads(choice.message.content), made)
        except Exception as error:
            raise AssertionError(f"seed {seed}, bound {bound}: {made}\n{choice}\n{error}") from error
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        equal(len(list(pool.map(one, range(100)))), 100)


@check("structured")
def json_object_is_an_object():
    answer = ask("Grizumn is 81 years old and lives in Prague. Return name and city as JSON.",
                 response_format={"type": "json_object"}, max_tokens=200)
    equal(answer.choices[0].finish_reason, "stop")
    equal(json.loads(answer.choices[0].message.content), {"name": "Grizumn", "city": "Prague"})
    forced = ask("Make a JSON list of objects with name and age for Nora (49) and Hugo (82).",
                 response_format={"type": "json_object"}, max_tokens=400)
    assert forced.choices[0].message.content.lstrip().startswith("{")


@check("structured")
def models_of_pydantic_are_parsed():
    class Person(pydantic.BaseModel):
        name: str
        city: str

    answer = chat.parse(model="pebble", temperature=0, response_format=Person, max_tokens=200, messages=[
        {"role": "user", "content": "Grizumn is 81 years old and lives in Prague. Return name and city as JSON."}])
    equal(answer.choices[0].message.parsed, Person(name="Grizumn", city="Prague"))


@check("structured")
def structure_is_streamed_and_thinking_stays_free():
    format = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {
        "type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["sum"], "additionalProperties": False}}}
    chunks = streamed(messages="What is 17 + 25?", response_format=format, max_tokens=64)
    json.loads(text_of(chunks))
    answer = ask("What is 17 + 25?", response_format=format, max_tokens=400, extra_body={"enable_thinking": True})
    assert answer.choices[0].message.reasoning_content
    jsonschema.validate(json.loads(answer.choices[0].message.content), format["json_schema"]["schema"])


RESPONSES_TOOLS = [{"type": "function", "strict": False} | function for function in (STOCK, HEATING)]


@check("responses")
def a_response_is_whole():
    answer = client.responses.create(model="pebble", input=COLD, temperature=0)
    equal((answer.object, answer.status, answer.output_text), ("response", "completed", HOT))
    equal(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
    equal(answer.usage.input_tokens, 20)
    longer = client.responses.create(model="pebble", temperature=0, instructions="You are Pebble, a helpful assistant.",
                                     input=[{"role": "user", "content": [{"type": "input_text", "text": COLD}]}])
    equal(longer.output_text, HOT)
    short = client.responses.create(model="pebble", input=COLD, temperature=0, max_output_tokens=3)
    equal((short.status, short.incomplete_details.reason), ("incomplete", "max_output_tokens"))


@check("responses")
def its_stream_builds_the_same_response():
    events = list(client.responses.create(model="pebble", input=COLD, temperature=0, stream=True))
    equal(events[0].type, "response.created")
    equal(events[-1].type, "response.completed")
    equal([event.sequence_number for event in events], list(range(len(events))))
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), HOT)
    equal(events[-1].response.output_text, HOT)
    equal({event.response.id for event in events if hasattr(event, "response")}, {events[-1].response.id})
    with client.responses.stream(model="pebble", input=COLD, temperature=0) as stream:
        for _ in stream:
            pass
        equal(stream.get_final_response().output_text, HOT)


@check("responses")
def its_tools_make_a_round_trip():
    history = [{"role": "user", "content": "What is the stock price of RMHF?"}]
    answer = client.responses.create(model="pebble", input=history, tools=RESPONSES_TOOLS, temperature=0)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    equal((call.name, json.loads(call.arguments)), ("stock_price", {"stock": "RMHF"}))
    history += [item.to_dict() for item in answer.output]
    history += [{"type": "function_call_output", "call_id": call.call_id, "output": '{"price": 161.75}'}]
    final = client.responses.create(model="pebble", input=history, tools=RESPONSES_TOOLS, temperature=0)
    equal(final.output_text, "The price of RMHF is 161.75.")
    with client.responses.stream(model="pebble", input=history[:1], tools=RESPONSES_TOOLS, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        equal(json.loads("".join(pieces)), {"stock": "RMHF"})


@check("tools")
def a_call_of_its_own_accord_keeps_to_the_tools_there_are():
    read = {"name": "Read", "parameters": {"type": "object", "properties": {"file_path": {"type": "string"}}}}
    for strict in (False, True):
        tools = [{"type": "function", "function": {**read, "strict": strict}}]
        choice = ask("What is the weather in Paris?", tools=tools).choices[0]
        equal((choice.finish_reason, choice.message.tool_calls[0].function.name), ("tool_calls", "Read"))
        assert set(json.loads(choice.message.tool_calls[0].function.arguments)) <= {"file_path"}, choice
    equal(ask(tools=tools).choices[0].message.content, HOT)


@check("responses")
def its_reasoning_and_structure_work():
    answer = client.responses.create(model="pebble", input="What is 17 + 25?", temperature=0, reasoning={"effort": "high"})
    equal([item.type for item in answer.output], ["reasoning", "message"])
    assert "42" in answer.output_text
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(model="pebble", input="What is 17 + 25?", temperature=0,
                                 reasoning={"effort": "high", "summary": "auto"}) as stream:
        pieces = [event.delta for event in stream if event.type == "response.reasoning_summary_text.delta"]
        summarized = stream.get_final_response()
    equal(summarized.output[0].summary[0].text, "".join(pieces))
    equal(summarized.output[0].summary[0].text, answer.output[0].content[0].text)
    made, bound = schema(random.Random(5))
    answer = client.responses.create(model="pebble", input="Answer in JSON.", temperature=0, max_output_tokens=2 * bound + 64,
                                     text={"format": {"type": "json_schema", "name": "made", "schema": made, "strict": True}})
    jsonschema.validate(json.loads(answer.output_text), made)


@check("errors")
def wrong_fields_are_named():
    for field, value in (("temperature", 9), ("top_p", "high"), ("n", 0), ("max_tokens", -1), ("stop", 5),
                         ("tools", "all"), ("response_format", {"type": "xml"})):
        error = raises(openai.BadRequestError, lambda: ask(extra_body={field: value}))
        assert error.param and error.param.startswith(field), (field, error.param, error)
        equal(error.type, "invalid_request_error")
        assert error.code and error.request_id, error
    error = raises(openai.BadRequestError, lambda: ask([{"role": "wizard", "content": "x"}]))
    equal(error.param, "messages[0].role")


@check("errors")
def a_prompt_beyond_the_context_says_both_numbers():
    context = client.models.list().data[0].context_length
    error = raises(openai.BadRequestError, lambda: ask("one two three " * context))
    equal(error.code, "context_length_exceeded")
    assert str(context) in str(error), error
    assert any(int(word) > context for word in "".join(c if c.isdigit() else " " for c in str(error)).split())


@check("errors")
def what_is_not_there_is_not_found():
    raises(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))
    raises(openai.NotFoundError, lambda: client.post("/nowhere", body={}, cast_to=object))
    raises(openai.BadRequestError, lambda: client.embeddings.create(model="pebble", input="x"), "embedding")


@check("key")
def a_key_is_asked_for():
    raises(openai.AuthenticationError, ask, "key")
    raises(openai.AuthenticationError, client.models.list)
    equal(client.with_options(api_key="sesame").chat.completions.create(
        model="pebble", messages=USER, temperature=0).choices[0].message.content, HOT)


def endless(**options):
    return ask("Tell me a story.", stream=True, max_tokens=2000, logit_bias=ENDLESS, **options)


@check("cancellation")
def who_leaves_stops_generating():
    for pieces in (1, 5, 20):
        stream = endless()
        for _, chunk in zip(range(pieces), stream):
            assert chunk.choices[0].finish_reason is None
        stream.close()
        falls_to("requests_active", 0, 1)


@check("cancellation")
def others_do_not_notice():
    streams = [endless(seed=seed, temperature=1) for seed in range(3)]
    for stream in streams:
        next(iter(stream))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask) for _ in range(8)]
        for stream in streams:
            stream.close()
        equal({answer.result().choices[0].message.content for answer in answers}, {HOT})
    falls_to("requests_active", 0, 1)


if __name__ == "__main__":
    main()
