//! Chat templates: messages to a prompt, and where its messages start.
//!
//! ```text
//! messages JSON --chat::Chat--> checked, guarded --ChatTemplate::render--> Rendered
//!                                                  Rendered::prompt --> Prompt { tokens, boundaries }
//! ```
//!
//! **Contents cannot inject special tokens.** The rendered text is tokenized with
//! markers (`<|im_start|>`, `<think>`) recognised, because the template writes them as
//! text. Whatever comes from the request is *guarded* first: a private character is put
//! inside everything that could become part of a marker, and taken out again after the
//! markers are cut out ([`guard`] says where). A content without such characters goes
//! through untouched, so the ids are those of tokenizing the whole rendered text.
//!
//! **Where messages start** is found without knowing the template: `starts` renders
//! the messages a second time with private marks around each content and learns what
//! the template puts around them. A start that cannot be found is left out.

pub mod chat;
mod error;
pub mod guard;
mod marks;
mod prompt;
mod python;
mod starts;

use std::borrow::Cow;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, context};

pub use chat::{Chat, Role};
pub use error::TemplateError;
pub use prompt::Prompt;

use crate::tokenizer::{TokenKind, Tokenizer};
use guard::Guard;

/// Longest template source, bytes.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Longest rendered text, bytes.
pub const MAX_RENDERED_BYTES: usize = 16 << 20;
/// Steps one rendering may take: an instruction, or some 64 bytes of data made.
pub const MAX_FUEL: u64 = 4_000_000;

/// The template used where a file brings none.
const CHATML: &str = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// What a rendering is asked for besides the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderOptions {
    /// Lets the model think aloud first, where the template knows how.
    pub enable_thinking: bool,
    /// Ends the prompt with the opening of the assistant's next message.
    pub add_generation_prompt: bool,
}

impl Default for RenderOptions {
    /// No thinking; an answer is asked for.
    fn default() -> Self {
        Self { enable_thinking: false, add_generation_prompt: true }
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    guard: Guard,
    /// Texts of the control tokens, one of which may open every message.
    openers: Vec<String>,
}

/// A rendered conversation, still guarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    starts: Vec<MessageStart>,
}

/// Where a message starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageStart {
    /// Offset in the guarded text, bytes.
    at: usize,
    /// Who says it.
    pub role: Role,
}

impl Rendered {
    /// The text as the template wrote it, guards removed.
    pub fn text(&self) -> Cow<'_, str> {
        guard::without_guards(&self.text)
    }

    /// The starts that were found, in order: the role and the text from there to the
    /// next start (or the end), guards removed.
    pub fn messages(&self) -> impl Iterator<Item = (Role, Cow<'_, str>)> {
        self.starts.iter().enumerate().map(|(i, start)| {
            let end = self.starts.get(i + 1).map_or(self.text.len(), |next| next.at);
            (start.role, guard::without_guards(&self.text[start.at..end]))
        })
    }
}

impl ChatTemplate {
    /// Compiles the template of the tokenizer's file, or ChatML where it has none.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        Self::compile(tokenizer.chat_template().unwrap_or(CHATML), tokenizer)
    }

    /// Compiles `source` for the markers of `tokenizer`.
    pub fn compile(source: &str, tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::SourceTooLong { bytes: source.len(), limit: MAX_SOURCE_BYTES });
        }
        let mut environment = Environment::new();
        // The settings Hugging Face compiles chat templates with.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| TemplateError::compile(&error))?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(MAX_FUEL));
        python::add_to(&mut environment);
        environment
            .add_template_owned("chat", python::without_generation_tags(source))
            .map_err(|error| TemplateError::compile(&error))?;
        let text = |id: Option<u32>| {
            id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).unwrap_or_default()
        };
        Ok(Self {
            environment,
            bos: text(tokenizer.bos()),
            eos: text(Some(tokenizer.eos())),
            guard: Guard::new(tokenizer)?,
            openers: tokenizer
                .markers()
                .filter(|&(_, id)| tokenizer.kind(id) == TokenKind::Control)
                .map(|(text, _)| text.to_owned())
                .collect(),
        })
    }

    /// Checks a request's `messages` and `tools` and guards their texts.
    pub fn chat(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
    ) -> Result<Chat, TemplateError> {
        Chat::new(messages, tools, &self.guard)
    }

    /// Renders a conversation and finds its message starts.
    pub fn render(&self, chat: &Chat, options: RenderOptions) -> Result<Rendered, TemplateError> {
        let text = self.expand(chat, chat.len(), false, options)?;
        let starts = self.starts(chat, &text, options);
        Ok(Rendered { text, starts })
    }

    /// Expands the template over the first `count` messages, their contents marked or not.
    fn expand(
        &self,
        chat: &Chat,
        count: usize,
        marked: bool,
        options: RenderOptions,
    ) -> Result<String, TemplateError> {
        let template = self.environment.get_template("chat").map_err(|e| TemplateError::render(&e))?;
        let context = context! {
            messages => chat.values(count, marked),
            tools => chat.tools(),
            documents => (),
            add_generation_prompt => options.add_generation_prompt,
            enable_thinking => options.enable_thinking,
            bos_token => &self.bos,
            eos_token => &self.eos,
        };
        let mut out = Bounded { bytes: Vec::new(), full: false };
        match template.render_captured_to(context, &mut out) {
            Ok(_) => {}
            Err(_) if out.full => {
                return Err(TemplateError::OutputTooLong { limit: MAX_RENDERED_BYTES });
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                return Err(TemplateError::OutOfFuel { limit: MAX_FUEL });
            }
            Err(error) => return Err(TemplateError::render(&error)),
        }
        String::from_utf8(out.bytes).map_err(|_| TemplateError::NotUtf8)
    }

    fn starts(&self, chat: &Chat, text: &str, options: RenderOptions) -> Vec<MessageStart> {
        let silent = RenderOptions { add_generation_prompt: false, ..options };
        let prefix = |count, marked| self.expand(chat, count, marked, silent).ok();
        let marked = self.expand(chat, chat.len(), true, options).ok();
        let roles: Vec<Role> = chat.roles().collect();
        let mut search = starts::Search::new(text, marked.as_deref(), &self.openers);
        for (index, &role) in roles.iter().enumerate() {
            search.find(index, index.checked_sub(1).map(|before| roles[before]), role, &prefix);
        }
        let body = options.add_generation_prompt.then(|| prefix(chat.len(), false)).flatten();
        search.finish(&roles, body.as_deref())
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

/// Collects output up to [`MAX_RENDERED_BYTES`].
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_RENDERED_BYTES {
            self.full = true;
            return Err(io::Error::other("the rendered text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
