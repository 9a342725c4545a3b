//! How much to think, in the words that clients of chat and of responses share.
//!
//! It decides whether the model thinks at all, and templates that know more see the word itself.

use engine::session::AnswerRequest;

use crate::fields::{Fields, Result};

/// Takes the effort over into the request. What is said later holds.
pub(super) fn read(fields: &Fields<'_>, key: &str, request: &mut AnswerRequest) -> Result<()> {
    match fields.string(key)? {
        // Some services have a word for the model's own way.
        None | Some("default") => {}
        Some("none" | "minimal") => {
            request.thinking = Some(false);
            request.template_variables.shift_remove("reasoning_effort");
        }
        // Effort needs thinking.
        Some(effort @ ("low" | "medium" | "high" | "xhigh" | "max")) => {
            request.thinking = Some(true);
            request.template_variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(other) => {
            let message = format!(
                "must be none, minimal, low, medium, high, xhigh, max or default, got {other:?}; \
                 words that only a template knows go into chat_template_kwargs"
            );
            return Err(fields.error(key, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::session::Input;
    use serde_json::{Value, json};

    fn read_alone(effort: &Value) -> Result<AnswerRequest> {
        let mut request = AnswerRequest::new(Input::Chat(Vec::new()));
        let body = json!({"effort": effort});
        read(&Fields::of_body(&body).unwrap(), "effort", &mut request)?;
        Ok(request)
    }

    #[test]
    fn effort_decides_about_thinking() {
        #[track_caller]
        fn check(effort: &Value, thinking: Option<bool>, variables: &Value) {
            let request = read_alone(effort).unwrap();
            assert_eq!(request.thinking, thinking);
            assert_eq!(Value::Object(request.template_variables), *variables);
        }
        check(&json!(null), None, &json!({}));
        check(&json!("default"), None, &json!({}));
        check(&json!("none"), Some(false), &json!({}));
        check(&json!("minimal"), Some(false), &json!({}));
        for effort in ["low", "medium", "high", "xhigh", "max"] {
            check(&json!(effort), Some(true), &json!({"reasoning_effort": effort}));
        }
    }

    #[test]
    fn other_words_are_refused() {
        for effort in [json!("banana"), json!(""), json!("HIGH"), json!(11)] {
            assert_eq!(read_alone(&effort).unwrap_err().param.as_deref(), Some("effort"));
        }
    }
}
