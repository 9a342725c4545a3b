//! A call as one JSON object: `{"name": …, "arguments": {…}}`, its keys in any order.
//!
//! The call begins on [`Calls`] when its name and the first brace of its arguments are known; before that it
//! can be refused without a trace, which is why an object with any other key is no call.

use super::parser::Calls;
use super::transcode::{Notation, Token, Transcoder};

/// What a character did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The object continues.
    More,
    /// The object, and the call, is complete with this character.
    Done,
    /// This is no call; nothing was begun.
    Refused,
    /// The call was begun and makes no sense from this character on; it is closed.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    KeyOrEnd,
    Key,
    Colon,
    Value(Role),
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Name,
    Id,
    Arguments,
    Ignored,
}

/// Reads one such object.
#[derive(Debug)]
pub(super) struct Envelope {
    state: State,
    transcoder: Transcoder,
    /// JSON of the key or value that is being read, but for arguments that go out at once.
    buffer: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    arguments: Option<String>,
    is_begun: bool,
}

impl Default for Envelope {
    fn default() -> Self {
        Self {
            state: State::Start,
            transcoder: Transcoder::new(Notation::Json),
            buffer: String::new(),
            name: None,
            id: None,
            arguments: None,
            is_begun: false,
        }
    }
}

impl Envelope {
    /// An object whose first brace has passed.
    pub(super) fn opened() -> Self {
        Self { state: State::KeyOrEnd, ..Self::default() }
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char, calls: &mut Calls) -> Progress {
        match self.state {
            State::Value(role) => return self.push_value(c, role, calls),
            State::Key => return self.push_key(c, calls),
            _ if c.is_whitespace() => return Progress::More,
            State::Start if c == '{' => self.state = State::KeyOrEnd,
            State::KeyOrEnd if c == '"' => {
                self.restart();
                self.state = State::Key;
                return self.push_key(c, calls);
            }
            State::Colon if c == ':' => {
                let Some(role) = self.role() else { return self.give_up(calls) };
                self.restart();
                self.state = State::Value(role);
            }
            State::After if c == ',' => self.state = State::KeyOrEnd,
            State::After | State::KeyOrEnd if c == '}' => return self.complete(calls),
            _ => return self.give_up(calls),
        }
        Progress::More
    }

    /// The text is over: completes a call that was begun.
    pub(super) fn finish(&mut self, calls: &mut Calls) {
        if self.is_begun && calls.is_open() {
            if self.state == State::Value(Role::Arguments) {
                let mut out = String::new();
                self.transcoder.close(&mut out);
                calls.arguments(&out);
            }
            calls.end();
        }
    }

    fn restart(&mut self) {
        self.transcoder = Transcoder::new(Notation::Json);
        self.buffer.clear();
    }

    fn push_key(&mut self, c: char, calls: &mut Calls) -> Progress {
        match self.transcoder.push(c, &mut self.buffer) {
            Token::More => Progress::More,
            Token::Done => {
                self.state = State::Colon;
                Progress::More
            }
            Token::DoneBefore | Token::Refused => self.give_up(calls),
        }
    }

    fn role(&self) -> Option<Role> {
        let key: String = serde_json::from_str(&self.buffer).ok()?;
        match key.as_str() {
            "name" | "function" | "tool" if self.name.is_none() => Some(Role::Name),
            "arguments" | "parameters" | "args" if !self.is_begun && self.arguments.is_none() => {
                Some(Role::Arguments)
            }
            "id" => Some(Role::Id),
            "type" => Some(Role::Ignored),
            // Text next to a call does not undo it.
            _ if self.is_begun => Some(Role::Ignored),
            _ => None,
        }
    }

    fn push_value(&mut self, c: char, role: Role, calls: &mut Calls) -> Progress {
        let token = self.transcoder.push(c, &mut self.buffer);
        if role == Role::Arguments {
            if !self.is_begun
                && self.buffer.starts_with('{')
                && let Some(name) = &self.name
            {
                self.is_begun = calls.begin(name, self.id.as_deref());
                if !self.is_begun {
                    return Progress::Refused;
                }
            }
            if self.is_begun {
                calls.arguments(&self.buffer);
                self.buffer.clear();
            }
        }
        match token {
            Token::More => return Progress::More,
            Token::Refused => return self.give_up(calls),
            Token::Done | Token::DoneBefore => self.state = State::After,
        }
        if !self.end_value(role, calls) {
            return Progress::Refused;
        }
        // A number or word ends at a character that is not its own.
        if token == Token::DoneBefore { self.push(c, calls) } else { Progress::More }
    }

    /// Whether what was read can be part of a call.
    fn end_value(&mut self, role: Role, calls: &mut Calls) -> bool {
        let text = || serde_json::from_str::<String>(&self.buffer).ok();
        match role {
            Role::Ignored => {}
            Role::Id => self.id = text(),
            Role::Name => {
                let Some(name) = text().filter(|name| calls.has(name)) else { return false };
                if let Some(arguments) = self.arguments.take() {
                    self.is_begun = calls.begin(&name, self.id.as_deref());
                    calls.arguments(&arguments);
                }
                self.name = Some(name);
            }
            Role::Arguments if self.is_begun => {}
            Role::Arguments => {
                let Some(arguments) = object(&self.buffer) else { return false };
                match &self.name {
                    Some(name) => {
                        self.is_begun = calls.begin(name, self.id.as_deref());
                        calls.arguments(&arguments);
                    }
                    None => self.arguments = Some(arguments),
                }
            }
        }
        true
    }

    fn complete(&mut self, calls: &mut Calls) -> Progress {
        if !self.is_begun {
            let Some(name) = &self.name else { return Progress::Refused };
            if !calls.begin(name, self.id.as_deref()) {
                return Progress::Refused;
            }
        }
        calls.end();
        Progress::Done
    }

    fn give_up(&mut self, calls: &mut Calls) -> Progress {
        if !self.is_begun {
            return Progress::Refused;
        }
        self.finish(calls);
        Progress::Broken
    }
}

/// The object that arguments are: themselves, the JSON text of one in a string, or nothing.
fn object(json: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    let value = match value {
        serde_json::Value::String(text) => serde_json::from_str(&text).ok()?,
        serde_json::Value::Null => serde_json::json!({}),
        value => value,
    };
    value.is_object().then(|| value.to_string())
}
