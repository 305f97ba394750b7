//! Checks a schema before the grammar library sees it.
//!
//! The library ignores keywords it does not know, and some it knows only for other
//! drafts; here every keyword must be one that is enforced or a mere annotation. All
//! schemas are read as draft 2020-12 with its older spellings (`definitions`, `items`
//! as a list, boolean `exclusiveMinimum`); `$schema` and `$id` may stand at the root,
//! where they change nothing. References must be pointers into the document. `oneOf` is taken where its branches cannot overlap.
//!
//! The walk also bounds the *forced text*: what a schema leaves no choice about (a
//! constant of a megabyte, thousands of equal items) is built and tokenized in one step
//! of an answer, so a schema that could force more than [`MAX_FORCED_BYTES`] at once is
//! refused. The bound adds up everything that must be written, taking the longest of
//! alternatives.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::GrammarError;

/// Longest schema, bytes.
pub const MAX_SCHEMA_BYTES: usize = 1 << 20;
/// Deepest nesting of the JSON text.
pub const MAX_NESTING: usize = 127;
/// Deepest nesting of schemas, references followed.
pub const MAX_DEPTH: usize = 256;
/// Most subschemas.
pub const MAX_SUBSCHEMAS: usize = 16_384;
/// Largest `minItems`, `maxItems`, `minProperties`, `maxProperties`.
pub const MAX_ITEMS: u64 = 4096;
/// Largest `minLength`, `maxLength`.
pub const MAX_LENGTH: u64 = 65_536;

/// Most bytes of text a schema may force at once.
pub const MAX_FORCED_BYTES: u64 = 16 << 10;

/// Annotations, which say nothing about the answer's form.
const ANNOTATIONS: [&str; 10] = [
    "$comment",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// The schema in `text`, every keyword of which is enforced or an annotation.
pub fn check(text: &str) -> Result<Value, GrammarError> {
    if text.len() > MAX_SCHEMA_BYTES {
        return Err(GrammarError::TooLong { bytes: text.len(), limit: MAX_SCHEMA_BYTES });
    }
    check_nesting(text)?;
    let mut schema: Value = serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        // The library repeats the place at the end of its message.
        let reason = reason.split(" at line ").next().unwrap_or_default().to_owned();
        GrammarError::Json { line: error.line(), column: error.column(), reason }
    })?;
    let mut walk = Walk { root: &schema, count: 0, followed: HashMap::new() };
    let forced = walk.schema(&schema, "#", 0)?;
    if forced > MAX_FORCED_BYTES {
        return Err(GrammarError::ForcedText { bytes: forced, limit: MAX_FORCED_BYTES });
    }
    if let Some(object) = schema.as_object_mut() {
        // In a library that follows them they would change which keywords are known
        // and what references mean.
        object.remove("$schema");
        object.remove("$id");
    }
    Ok(schema)
}

/// Refuses deep nesting before anything recurses into it.
fn check_nesting(text: &str) -> Result<(), GrammarError> {
    let (mut depth, mut line, mut line_start) = (0usize, 1, 0);
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => (line, line_start) = (line + 1, at + 1),
            _ if in_string && escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_NESTING {
                    return Err(GrammarError::TooDeep {
                        limit: MAX_NESTING,
                        line,
                        column: at - line_start + 1,
                    });
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// The walk over all subschemas, references followed once. Its methods give the bound
/// on forced bytes.
struct Walk<'a> {
    root: &'a Value,
    count: usize,
    /// References and the bound of what they lead to, zero while it is being walked:
    /// what recursion adds is a choice.
    followed: HashMap<&'a str, u64>,
}

impl<'a> Walk<'a> {
    fn schema(&mut self, schema: &'a Value, path: &str, depth: usize) -> Result<u64, GrammarError> {
        let too_many = |what, limit| Err(GrammarError::TooMany { what, path: path.to_owned(), limit });
        self.count += 1;
        if self.count > MAX_SUBSCHEMAS {
            return too_many("subschemas", MAX_SUBSCHEMAS);
        }
        if depth > MAX_DEPTH {
            return too_many("levels, references followed,", MAX_DEPTH);
        }
        match schema {
            Value::Bool(_) => Ok(0),
            Value::Object(object) => {
                let mut forced = 0u64;
                for (keyword, value) in object {
                    let place = Place { path, keyword };
                    forced = forced.saturating_add(self.keyword(object, value, &place, depth + 1)?);
                }
                Ok(forced)
            }
            _ => Err(GrammarError::NotASchema { path: path.to_owned() }),
        }
    }

    /// `depth` is that of subschemas below the keyword.
    fn keyword(
        &mut self,
        schema: &'a Map<String, Value>,
        value: &'a Value,
        place: &Place<'a, '_>,
        depth: usize,
    ) -> Result<u64, GrammarError> {
        let at_least = |key: &str| schema.get(key).and_then(Value::as_u64).unwrap_or(0);
        match place.keyword {
            "$defs" | "definitions" => self.members(value, place, depth).map(|_| 0),
            "properties" => self.members(value, place, depth).map(|(sum, _)| sum),
            "patternProperties" => {
                let (_, longest) = self.members(value, place, depth)?;
                Ok(longest.saturating_mul(at_least("minProperties").max(1)))
            }
            "additionalProperties" => {
                let each = self.schema(value, &place.here(), depth)?.saturating_add(4);
                Ok(each.saturating_mul(at_least("minProperties")))
            }
            "items" if !value.is_array() => {
                let each = self.schema(value, &place.here(), depth)?.saturating_add(1);
                Ok(each.saturating_mul(at_least("minItems").max(1)))
            }
            // Meaningless, and so ignored, without the old form of `items`.
            "additionalItems" if schema.get("items").is_some_and(Value::is_array) => {
                let each = self.schema(value, &place.here(), depth)?.saturating_add(1);
                Ok(each.saturating_mul(at_least("minItems").max(1)))
            }
            "allOf" | "prefixItems" | "items" => self.list(value, place, depth).map(|(sum, _)| sum),
            "anyOf" | "oneOf" => self.list(value, place, depth).map(|(_, longest)| longest),
            "$ref" => self.reference(value, place, depth),
            "const" => Ok(value.to_string().len() as u64),
            "enum" => {
                let values = value.as_array().filter(|values| !values.is_empty());
                let values = values.ok_or_else(|| place.wants("a list of at least one value"))?;
                Ok(values.iter().map(|v| v.to_string().len() as u64).max().unwrap_or(0))
            }
            "minLength" => {
                place.whole_number(value, MAX_LENGTH)?;
                Ok(at_least("minLength"))
            }
            "pattern" => {
                let pattern = value.as_str().ok_or_else(|| place.wants("a regular expression"))?;
                // What this parser does not know the grammar library refuses.
                let parsed = regex_syntax::Parser::new().parse(pattern).ok();
                Ok(parsed.and_then(|hir| hir.properties().minimum_len()).unwrap_or(0) as u64)
            }
            _ => place.check_plain(value).map(|()| 0),
        }
    }

    /// The schemas of an object's members: sum and maximum of their bounds, names included.
    fn members(
        &mut self,
        value: &'a Value,
        place: &Place<'a, '_>,
        depth: usize,
    ) -> Result<(u64, u64), GrammarError> {
        let members = value.as_object().ok_or_else(|| place.wants("an object"))?;
        let (mut sum, mut longest) = (0u64, 0);
        for (name, member) in members {
            let forced = self.schema(member, &place.below(name), depth)?;
            let forced = forced.saturating_add(name.len() as u64 + 4);
            sum = sum.saturating_add(forced);
            longest = forced.max(longest);
        }
        Ok((sum, longest))
    }

    /// The schemas of a list: sum and maximum of their bounds.
    fn list(
        &mut self,
        value: &'a Value,
        place: &Place<'a, '_>,
        depth: usize,
    ) -> Result<(u64, u64), GrammarError> {
        let members = value.as_array().ok_or_else(|| place.wants("a list"))?;
        let (mut sum, mut longest) = (0u64, 0);
        for (index, member) in members.iter().enumerate() {
            let forced = self.schema(member, &place.below(&index.to_string()), depth)?;
            sum = sum.saturating_add(forced);
            longest = forced.max(longest);
        }
        Ok((sum, longest))
    }

    fn reference(
        &mut self,
        value: &'a Value,
        place: &Place<'a, '_>,
        depth: usize,
    ) -> Result<u64, GrammarError> {
        const EXPECTED: &str = "a reference into the schema itself, such as \"#/$defs/name\"";
        let reference = value.as_str().ok_or_else(|| place.wants(EXPECTED))?;
        let pointer = reference.strip_prefix('#').ok_or_else(|| place.wants(EXPECTED))?;
        // `pointer` of the JSON library undoes ~0 and ~1; percent signs are rare enough
        // in names to be refused by the look-up.
        let target = self.root.pointer(pointer).ok_or_else(|| place.wants(EXPECTED))?;
        if let Some(&forced) = self.followed.get(reference) {
            return Ok(forced);
        }
        self.followed.insert(reference, 0);
        let forced = self.schema(target, reference, depth)?;
        self.followed.insert(reference, forced);
        Ok(forced)
    }
}

/// A keyword and where it stands.
struct Place<'k, 'p> {
    path: &'p str,
    keyword: &'k str,
}

impl Place<'_, '_> {
    /// Checks a keyword that holds no schemas and forces no text.
    fn check_plain(&self, value: &Value) -> Result<(), GrammarError> {
        match self.keyword {
            "type" => {
                let known = |v: &Value| v.as_str().is_some_and(|t| TYPES.contains(&t));
                let ok =
                    known(value) || value.as_array().is_some_and(|t| !t.is_empty() && t.iter().all(known));
                self.check(ok, || format!("one of {}, or a list of them", TYPES.join(", ")))
            }
            "required" => {
                let ok = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
                self.check(ok, || "a list of names".to_owned())
            }
            "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                self.whole_number(value, MAX_ITEMS)
            }
            "maxLength" => self.whole_number(value, MAX_LENGTH),
            "format" => {
                let ok = value.as_str().is_some_and(|format| FORMATS.contains(&format));
                self.check(ok, || format!("one of {}", FORMATS.join(", ")))
            }
            "exclusiveMinimum" | "exclusiveMaximum" => {
                self.check(value.is_number() || value.is_boolean(), || "a number".to_owned())
            }
            "minimum" | "maximum" => self.check(value.is_number(), || "a number".to_owned()),
            "multipleOf" => {
                let ok = value.as_f64().is_some_and(|n| n > 0.0);
                self.check(ok, || "a number above zero".to_owned())
            }
            "$schema" | "$id" if self.path == "#" => self.check(value.is_string(), || "a text".to_owned()),
            keyword if ANNOTATIONS.contains(&keyword) => Ok(()),
            keyword => Err(GrammarError::Keyword {
                keyword: keyword.chars().take(80).collect(),
                path: self.path.to_owned(),
            }),
        }
    }

    fn whole_number(&self, value: &Value, limit: u64) -> Result<(), GrammarError> {
        let ok = value.as_u64().is_some_and(|n| n <= limit);
        self.check(ok, || format!("a whole number from 0 to {limit}"))
    }

    fn here(&self) -> String {
        format!("{}/{}", self.path, self.keyword)
    }

    fn below(&self, name: &str) -> String {
        format!("{}/{}/{}", self.path, self.keyword, name.replace('~', "~0").replace('/', "~1"))
    }

    fn wants(&self, expected: &str) -> GrammarError {
        GrammarError::KeywordValue {
            keyword: self.keyword.to_owned(),
            path: self.path.to_owned(),
            expected: expected.to_owned(),
        }
    }

    fn check(&self, ok: bool, expected: impl Fn() -> String) -> Result<(), GrammarError> {
        if ok { Ok(()) } else { Err(self.wants(&expected())) }
    }
}
