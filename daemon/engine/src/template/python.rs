//! What chat templates expect of the Python side: string methods, `tojson`,
//! `raise_exception`, `strftime_now`.

use std::fmt::{self, Write as _};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use regex_lite::Regex;

/// A template's own refusal of a conversation.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// Adds them all.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        jiff::fmt::strtime::format(&format, &jiff::ZonedDateTime::now())
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    });
    environment.add_filter("tojson", to_json);
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn to_json(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<usize>>("indent")? {
        Some(indent) => Some(indent),
        None => indent,
    };
    // Taken by some templates; Python's default here, and the only order we have.
    let _ = kwargs.get::<Option<bool>>("ensure_ascii")?;
    let _ = kwargs.get::<Option<bool>>("sort_keys")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write_json(value, indent.map(|n| n.min(16)), 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > 2 * super::chat::MAX_DEPTH {
        return Err(Error::new(ErrorKind::BadSerialization, "nested too deeply"));
    }
    let close = |out: &mut String, c| {
        new_line(indent, depth, out);
        out.push(c);
    };
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter()? {
                separate(indent, depth + 1, &mut empty, out);
                write_json(&item, indent, depth + 1, out)?;
            }
            if empty { out.push(']') } else { close(out, ']') }
        }
        ValueKind::Map => {
            out.push('{');
            let mut empty = true;
            for key in value.try_iter()? {
                separate(indent, depth + 1, &mut empty, out);
                write_scalar(&Value::from(key.to_string()), out)?;
                out.push_str(": ");
                write_json(&value.get_item(&key)?, indent, depth + 1, out)?;
            }
            if empty { out.push('}') } else { close(out, '}') }
        }
        ValueKind::Undefined => {
            return Err(Error::new(ErrorKind::BadSerialization, "undefined is not JSON"));
        }
        _ => write_scalar(value, out)?,
    }
    Ok(())
}

fn separate(indent: Option<usize>, depth: usize, empty: &mut bool, out: &mut String) {
    if !*empty {
        out.push_str(if indent.is_some() { "," } else { ", " });
    }
    *empty = false;
    new_line(indent, depth, out);
}

fn new_line(indent: Option<usize>, depth: usize, out: &mut String) {
    if let Some(indent) = indent {
        let _ = write!(out, "\n{:width$}", "", width = indent * depth);
    }
}

fn write_scalar(value: &Value, out: &mut String) -> Result<(), Error> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error))?;
    out.push_str(&text);
    Ok(())
}

/// The source with `{% generation %}` blocks (marks for training code, unknown to the
/// engine) turned into blocks that always hold, white-space control kept.
pub(super) fn without_generation_tags(source: &str) -> String {
    let replace = |source: &str, tag: &str, with: &str| match Regex::new(&format!(
        r"\{{%([-+]?)\s*{tag}\s*([-+]?)%\}}"
    )) {
        Ok(regex) => regex.replace_all(source, format!("{{%$1 {with} $2%}}")).into_owned(),
        Err(_) => source.to_owned(),
    };
    let opened = replace(source, "generation", "if true");
    replace(&opened, "endgeneration", "endif")
}
