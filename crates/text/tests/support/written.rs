//! Calls as each format writes them.

use serde_json::{Value, json};
use text::tools::ToolFormat;

/// One call as each format writes it. `quoted` are arguments as JSON texts, in the schema's order.
pub(crate) fn write(
    format: ToolFormat,
    has_specials: bool,
    name: &str,
    arguments: &[(&str, Value)],
) -> String {
    let object = || {
        let pairs: Vec<String> =
            arguments.iter().map(|(key, value)| format!("{}: {value}", json!(key))).collect();
        format!("{{{}}}", pairs.join(", "))
    };
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let each = |write: &dyn Fn(&str, &Value) -> String, separator: &str| {
        let parts: Vec<String> = arguments.iter().map(|(key, value)| write(key, value)).collect();
        parts.join(separator)
    };
    match format {
        ToolFormat::Hermes => format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {}}}\n</tool_call>",
            object()
        ),
        ToolFormat::Llama3 => format!("{{\"name\": \"{name}\", \"parameters\": {}}}", object()),
        ToolFormat::Mistral if has_specials => format!("[TOOL_CALLS]{name}[ARGS]{}", object()),
        ToolFormat::Mistral => format!("{{\"name\": \"{name}\", \"arguments\": {}}}", object()),
        ToolFormat::DeepSeek => {
            format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{}<｜tool▁call▁end｜>", object())
        }
        ToolFormat::Kimi => format!(
            "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
            object()
        ),
        ToolFormat::Harmony => format!(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{}<|call|>",
            object()
        ),
        ToolFormat::QwenXml => {
            let parameters = each(
                &|key, value| format!("<parameter={key}>\n{}\n</parameter>\n", plain(value)),
                "",
            );
            format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
        }
        ToolFormat::SeedXml => {
            let parameters =
                each(&|key, value| format!("<parameter={key}>{}</parameter>\n", plain(value)), "");
            format!(
                "<seed:tool_call>\n<function={name}>\n{parameters}</function>\n</seed:tool_call>"
            )
        }
        ToolFormat::Glm => {
            let parameters = each(
                &|key, value| {
                    format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", plain(value))
                },
                "",
            );
            format!("<tool_call>{name}\n{parameters}</tool_call>")
        }
        ToolFormat::MiniMax => {
            let parameters = each(
                &|key, value| format!("<parameter name=\"{key}\">{}</parameter>\n", plain(value)),
                "",
            );
            format!("<invoke name=\"{name}\">\n{parameters}</invoke>\n")
        }
        ToolFormat::DeepSeekXml => {
            let parameters = each(
                &|key, value| {
                    let flag = value.is_string();
                    format!(
                        "<｜DSML｜parameter name=\"{key}\" string=\"{flag}\">{}</｜DSML｜parameter>\n",
                        plain(value)
                    )
                },
                "",
            );
            format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>\n")
        }
        ToolFormat::Gemma4 => {
            fn gemma(value: &Value) -> String {
                match value {
                    Value::String(text) => format!("<|\"|>{text}<|\"|>"),
                    Value::Array(items) => {
                        format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(","))
                    }
                    Value::Object(entries) => {
                        let pairs: Vec<String> = entries
                            .iter()
                            .map(|(key, value)| format!("{key}:{}", gemma(value)))
                            .collect();
                        format!("{{{}}}", pairs.join(","))
                    }
                    other => other.to_string(),
                }
            }
            let parameters = each(&|key, value| format!("{key}:{}", gemma(value)), ",");
            format!("<|tool_call>call:{name}{{{parameters}}}<tool_call|>")
        }
        ToolFormat::Pythonic => {
            let python = |key: &str, value: &Value| match value {
                Value::Null => format!("{key}=None"),
                Value::Bool(flag) => format!("{key}={}", if *flag { "True" } else { "False" }),
                Value::Array(_) | Value::Object(_) => format!(
                    "{key}={}",
                    value.to_string().replace("\":", "\": ").replace("\",\"", "\", \"")
                ),
                value => format!("{key}={value}"),
            };
            format!("{name}({})", each(&python, ", "))
        }
    }
}

/// Calls with what the format puts around and between them.
pub(crate) fn answer(format: ToolFormat, has_specials: bool, calls: &[String]) -> String {
    let (open, separator, close) = match format {
        ToolFormat::Hermes | ToolFormat::QwenXml | ToolFormat::SeedXml | ToolFormat::Glm => {
            ("", "\n", "")
        }
        ToolFormat::Gemma4 | ToolFormat::Harmony | ToolFormat::Llama3 => ("", "", ""),
        ToolFormat::Mistral if has_specials => ("", "", ""),
        ToolFormat::Mistral => ("[TOOL_CALLS][", ", ", "]"),
        ToolFormat::DeepSeek => ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
        ToolFormat::DeepSeekXml => ("<｜DSML｜function_calls>\n", "", "</｜DSML｜function_calls>"),
        ToolFormat::Kimi => ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
        ToolFormat::MiniMax => ("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
        ToolFormat::Pythonic if has_specials => {
            ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>")
        }
        ToolFormat::Pythonic => ("[", ", ", "]"),
    };
    format!("{open}{}{close}", calls.join(separator))
}
