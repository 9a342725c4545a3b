"""Random JSON schemas with a bound: the longest text that satisfies one is known."""

import json

# A character may be written as two escapes of six bytes.
LONGEST_CHARACTER_BYTES = 12
NAMES = ["name", "age", "city", "colour", "size", "tags", "note", "is_new", "größe", "a b", "x", "items"]
WORDS = ["red", "green", "blue", "", "a \"quoted\" word", "naïve", "line\nbreak", "名前", "back\\slash"]


def written(value):
    """The longest way to write a fixed value."""
    if isinstance(value, str):
        return 2 + LONGEST_CHARACTER_BYTES * len(value)
    return len(json.dumps(value))


def schema(random, depth=0):
    """A schema, and the most bytes of a text that satisfies it, white space between tokens apart."""
    kinds = ["boolean", "null", "integer", "string", "enum", "const", "pattern"]
    if depth < 3:
        kinds += ["object", "object", "object", "array", "array", "any"]
    kind = "object" if depth == 0 else random.choice(kinds)
    if kind == "object":
        names = random.sample(NAMES, random.randint(1, 4))
        parts = {name: schema(random, depth + 1) for name in names}
        required = [name for name in names if random.random() < 0.7]
        bound = 2 + sum(written(name) + 2 + most for name, (_, most) in parts.items())
        made = {"type": "object", "properties": {name: part for name, (part, _) in parts.items()},
                "required": required, "additionalProperties": False}
        return made, bound
    if kind == "array":
        items, most = schema(random, depth + 1)
        least, longest = random.randint(0, 1), random.randint(1, 3)
        return {"type": "array", "items": items, "minItems": least, "maxItems": longest}, 2 + longest * (most + 1)
    if kind == "any":
        parts = [schema(random, depth + 1) for _ in range(2)]
        return {"anyOf": [part for part, _ in parts]}, max(most for _, most in parts)
    if kind == "integer":
        least = random.randint(-1000, 1000)
        most = least + random.choice([0, 1, 9, 500, 100_000])
        return {"type": "integer", "minimum": least, "maximum": most}, max(len(str(least)), len(str(most))) + 1
    if kind == "string":
        longest = random.randint(0, 12)
        made = {"type": "string", "minLength": random.randint(0, longest), "maxLength": longest}
        return made, 2 + LONGEST_CHARACTER_BYTES * longest
    if kind == "enum":
        values = random.sample(WORDS, random.randint(1, 4)) + random.sample([1, -2, None, True], 1)
        return {"enum": values}, max(map(written, values))
    if kind == "const":
        value = random.choice(WORDS)
        return {"const": value}, written(value)
    if kind == "pattern":
        pattern, longest = random.choice([("^[a-z]{1,6}$", 6), ("^(yes|no|perhaps)$", 7), ("^[A-F0-9]{4}-[0-9]{2}$", 7)])
        return {"type": "string", "pattern": pattern}, 2 + LONGEST_CHARACTER_BYTES * longest
    return ({"type": "boolean"}, 5) if kind == "boolean" else ({"type": "null"}, 4)
