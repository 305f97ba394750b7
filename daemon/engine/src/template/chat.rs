//! A request's messages and tools, checked.

use std::fmt;

use minijinja::Value;
use minijinja::value::Serde;
use serde_json::{Map, Value as Json};

use super::guard::Guard;
use super::{TemplateError, marks};

/// Most messages in a conversation.
pub const MAX_MESSAGES: usize = 4096;
/// Most tools a request may offer.
pub const MAX_TOOLS: usize = 1024;
/// Most bytes of text in messages and tools together.
pub const MAX_TEXT_BYTES: usize = 8 << 20;
/// Deepest nesting of the JSON in messages and tools.
pub const MAX_DEPTH: usize = 64;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    const ALL: [Self; 5] = [Self::System, Self::Developer, Self::User, Self::Assistant, Self::Tool];

    /// The name in requests and templates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A conversation whose form was checked and whose texts are guarded.
#[derive(Debug, Clone)]
pub struct Chat {
    messages: Vec<(Role, Map<String, Json>)>,
    tools: Option<Json>,
}

impl Chat {
    /// Checks `messages` (a list of objects with `role` and `content`) and `tools`.
    pub fn new(messages: &Json, tools: Option<&Json>, guard: &Guard) -> Result<Self, TemplateError> {
        let mut reader = Reader { guard, bytes: 0 };
        let list = list("messages", messages, MAX_MESSAGES)?;
        if list.is_empty() {
            return Err(wrong("messages", "an empty list", "at least one message"));
        }
        let messages = list
            .iter()
            .enumerate()
            .map(|(index, message)| reader.message(&format!("messages[{index}]"), message))
            .collect::<Result<_, _>>()?;
        let tools = match tools {
            None | Some(Json::Null) => None,
            Some(tools) => {
                self::list("tools", tools, MAX_TOOLS)?;
                let tools = reader.json(tools, false, 0)?;
                // No tools at all and an empty list mean the same to a template.
                (tools.as_array().is_some_and(|t| !t.is_empty())).then_some(tools)
            }
        };
        Ok(Self { messages, tools })
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are no messages (never, once checked).
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The role of each message.
    pub fn roles(&self) -> impl Iterator<Item = Role> {
        self.messages.iter().map(|&(role, _)| role)
    }

    /// The first `count` messages as the template sees them.
    pub(super) fn values(&self, count: usize, marked: bool) -> Value {
        self.messages[..count]
            .iter()
            .enumerate()
            .map(|(index, (_, message))| match message.get("content") {
                Some(Json::String(content)) if marked => {
                    let mut message = message.clone();
                    message.insert("content".to_owned(), marks::marked(content, index).into());
                    Value::from(Serde(message))
                }
                _ => Value::from(Serde(message)),
            })
            .collect()
    }

    /// The tools as the template sees them; none if there are none.
    pub(super) fn tools(&self) -> Value {
        self.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)))
    }
}

/// Checks and guards texts, counting them.
struct Reader<'a> {
    guard: &'a Guard,
    bytes: usize,
}

impl Reader<'_> {
    fn message(&mut self, field: &str, message: &Json) -> Result<(Role, Map<String, Json>), TemplateError> {
        let object = message
            .as_object()
            .ok_or_else(|| wrong(field, kind(message), "an object with role and content"))?;
        let role = self.role(field, object.get("role"))?;
        let assistant = role == Role::Assistant;
        let mut checked = Map::new();
        checked.insert("role".to_owned(), role.name().into());
        let content = match object.get("content") {
            None | Some(Json::Null) if assistant => Json::Null,
            None => return Err(wrong(&format!("{field}.content"), "missing", "a text")),
            Some(content) => self.content(&format!("{field}.content"), content, assistant)?,
        };
        checked.insert("content".to_owned(), content);
        for (key, value) in object {
            let field = format!("{field}.{key}");
            match key.as_str() {
                "role" | "content" => {}
                "tool_calls" if value.is_null() => {}
                "tool_calls" => {
                    let calls = self.tool_calls(&field, value)?;
                    checked.insert(key.clone(), calls);
                }
                _ => {
                    let key = self.text(key, false)?;
                    let value = self.json(value, assistant, 0)?;
                    checked.insert(key, value);
                }
            }
        }
        Ok((role, checked))
    }

    fn role(&self, field: &str, role: Option<&Json>) -> Result<Role, TemplateError> {
        const EXPECTED: &str = "system, developer, user, assistant or tool";
        let field = format!("{field}.role");
        match role {
            Some(Json::String(name)) => Role::ALL
                .into_iter()
                .find(|role| role.name() == name)
                .ok_or_else(|| wrong(&field, "another role", EXPECTED)),
            Some(other) => Err(wrong(&field, kind(other), EXPECTED)),
            None => Err(wrong(&field, "missing", EXPECTED)),
        }
    }

    /// A content: a text, or a list of text parts, which are joined.
    fn content(&mut self, field: &str, content: &Json, assistant: bool) -> Result<Json, TemplateError> {
        const EXPECTED: &str = "a text or a list of text parts";
        let parts = match content {
            Json::String(text) => return Ok(self.text(text, assistant)?.into()),
            Json::Array(parts) => parts,
            other => return Err(wrong(field, kind(other), EXPECTED)),
        };
        let mut joined = String::new();
        for (index, part) in parts.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match part.get("type").and_then(Json::as_str) {
                Some("text") => match part.get("text") {
                    Some(Json::String(text)) => joined.push_str(text),
                    _ => return Err(wrong(&format!("{field}.text"), "missing", "a text")),
                },
                Some("image" | "image_url" | "input_image" | "video" | "video_url") => {
                    return Err(TemplateError::ImageContent { field });
                }
                Some(_) => {
                    return Err(wrong(&format!("{field}.type"), "another type", "\"text\""));
                }
                None => return Err(wrong(&format!("{field}.type"), "missing", "\"text\"")),
            }
        }
        Ok(self.text(&joined, assistant)?.into())
    }

    /// Tool calls of an assistant. Requests carry the arguments as a JSON text,
    /// templates want the object.
    fn tool_calls(&mut self, field: &str, calls: &Json) -> Result<Json, TemplateError> {
        let mut calls = list(field, calls, MAX_TOOLS)?.clone();
        for call in &mut calls {
            let function = match call.get_mut("function") {
                Some(function) => function,
                None => call,
            };
            if let Some(Json::String(text)) = function.get("arguments")
                && let Ok(arguments @ Json::Object(_)) = serde_json::from_str(text)
            {
                function["arguments"] = arguments;
            }
        }
        self.json(&Json::Array(calls), false, 0)
    }

    /// Any JSON, with every text in it (keys too) guarded.
    fn json(&mut self, value: &Json, assistant: bool, depth: usize) -> Result<Json, TemplateError> {
        if depth > MAX_DEPTH {
            return Err(TemplateError::TooLarge {
                what: "the nesting of messages and tools",
                value: depth,
                limit: MAX_DEPTH,
            });
        }
        Ok(match value {
            Json::String(text) => self.text(text, assistant)?.into(),
            Json::Array(items) => {
                items.iter().map(|item| self.json(item, assistant, depth + 1)).collect::<Result<_, _>>()?
            }
            Json::Object(object) => {
                let mut out = Map::new();
                for (key, value) in object {
                    out.insert(self.text(key, false)?, self.json(value, assistant, depth + 1)?);
                }
                Json::Object(out)
            }
            other => other.clone(),
        })
    }

    fn text(&mut self, text: &str, assistant: bool) -> Result<String, TemplateError> {
        self.bytes += text.len();
        if self.bytes > MAX_TEXT_BYTES {
            return Err(TemplateError::TooLarge {
                what: "the text of messages and tools in bytes",
                value: self.bytes,
                limit: MAX_TEXT_BYTES,
            });
        }
        Ok(if assistant { self.guard.assistant_text(text) } else { self.guard.text(text) })
    }
}

fn list<'a>(field: &str, value: &'a Json, limit: usize) -> Result<&'a Vec<Json>, TemplateError> {
    let items = value.as_array().ok_or_else(|| wrong(field, kind(value), "a list"))?;
    if items.len() > limit {
        return Err(TemplateError::Field {
            field: field.to_owned(),
            actual: format!("a list of {}", items.len()),
            expected: "a shorter list (4096 messages, 1024 tools)",
        });
    }
    Ok(items)
}

fn wrong(field: &str, actual: &str, expected: &'static str) -> TemplateError {
    TemplateError::Field { field: field.to_owned(), actual: actual.to_owned(), expected }
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a bool",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
