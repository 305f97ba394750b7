//! JSON schemas: given on the command line, and checked against answers.

use crate::failure::Failure;
use serde_json::Value;
use std::path::Path;

/// The schema text that an argument means: itself if it is JSON, else the file's content.
/// Whether the daemon can enforce it, the daemon says.
pub(crate) fn text_of(argument: &str) -> Result<String, Failure> {
    let start = argument.trim_start();
    if start.starts_with('{') || start == "true" || start == "false" {
        return Ok(argument.to_owned());
    }
    let path = Path::new(argument);
    std::fs::read_to_string(path).map_err(Failure::read(path))
}

/// Checks answers against one schema, with another library than the one that constrains
/// them.
#[derive(Debug)]
pub(crate) struct Checker {
    validator: jsonschema::Validator,
}

impl Checker {
    /// A checker for schema text.
    pub(crate) fn new(text: &str) -> Result<Checker, String> {
        let schema: Value = serde_json::from_str(text).map_err(|e| format!("the schema is no JSON: {e}"))?;
        let validator = jsonschema::validator_for(&schema).map_err(|e| format!("the schema is none: {e}"))?;
        Ok(Checker { validator })
    }

    /// Whether an answer is JSON that satisfies the schema.
    pub(crate) fn accepts(&self, answer: &str) -> bool {
        serde_json::from_str::<Value>(answer).is_ok_and(|value| self.validator.is_valid(&value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_taken_as_it_stands_and_anything_else_names_a_file() {
        assert_eq!(text_of(" {\"type\": 1").unwrap(), " {\"type\": 1");
        assert!(text_of("nowhere.json").unwrap_err().to_string().contains("nowhere.json"));
    }

    #[test]
    fn an_answer_outside_the_schema_is_not_accepted() {
        let checker =
            Checker::new(r#"{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}"#);
        let checker = checker.unwrap();
        assert!(checker.accepts(r#"{"a":1}"#));
        assert!(!checker.accepts(r#"{"a":"x"}"#));
        assert!(!checker.accepts(r#"{"a":1"#));
    }
}
