//! A question as JSON has it, in the body of an HTTP request and on standard input: SQL or a saved
//! investigation, with values by name.

use std::collections::BTreeMap;
use std::path::Path;

use ask::{Target, UsageError};
use query_planner::{Value, with_values};
use serde::Deserialize;

use super::saved;

/// A question as JSON has it: `sql` or `saved`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// One SELECT, in SQLite's dialect; `:name` stands where a value of `parameters` goes.
    sql: Option<String>,
    /// The name of a saved investigation (`GET investigations`).
    saved: Option<String>,
    /// Values by name, which become literals and nothing else: numbers, texts, true, false, null,
    /// and the objects of answers: `{"blob": "00ff"}`, `{"text": "61ff"}`, `{"real": "Inf"}`. Those
    /// of a saved investigation are numbers or texts (`10m`, `now`, `5`): it declares their types,
    /// and defaults.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    parameters: BTreeMap<String, serde_json::Value>,
}

impl Sql {
    /// A saved investigation, with values written as `NAME=VALUE`.
    ///
    /// # Errors
    /// A pair has no name, or a name comes twice.
    pub fn saved(name: &str, pairs: &[String]) -> Result<Self, UsageError> {
        let texts = saved::pairs(pairs)?.into_iter().map(|(name, value)| (name, serde_json::Value::String(value)));
        Ok(Self { sql: None, saved: Some(name.to_owned()), parameters: texts.collect() })
    }

    /// A question without values.
    pub fn of(sql: impl Into<String>) -> Self {
        Self { sql: Some(sql.into()), ..Self::default() }
    }

    /// A question with values written as `NAME=VALUE`: a VALUE that is JSON's number, text in
    /// quotation marks, true, false or null is that, another one a text.
    ///
    /// # Errors
    /// A pair has no name, or a name comes twice.
    pub fn with(sql: impl Into<String>, pairs: &[String]) -> Result<Self, UsageError> {
        let mut parameters = BTreeMap::new();
        for (name, value) in saved::pairs(pairs)? {
            let scalar = serde_json::from_str(&value).ok().filter(|value: &serde_json::Value| !value.is_array());
            parameters.insert(name, scalar.unwrap_or(serde_json::Value::String(value)));
        }
        Ok(Self { sql: Some(sql.into()), saved: None, parameters })
    }

    /// Read from JSON.
    ///
    /// # Errors
    /// It is no such object; the message says what it is.
    pub fn parsed(json: &[u8]) -> Result<Self, UsageError> {
        let wrong = |why: String| UsageError(format!("not {{\"sql\": …}} or {{\"saved\": …}}: {why}"));
        let value: serde_json::Value =
            serde_json::from_slice(json).map_err(|error| wrong(format!("no JSON: {error}")))?;
        let serde_json::Value::Object(members) = value else {
            return Err(wrong(format!("{} where an object is wanted", kind(&value))));
        };
        let mut parsed = Self::default();
        for (name, value) in members {
            match (name.as_str(), value) {
                ("sql", serde_json::Value::String(text)) => parsed.sql = Some(text),
                ("saved", serde_json::Value::String(text)) => parsed.saved = Some(text),
                ("parameters", serde_json::Value::Object(values)) => parsed.parameters = values.into_iter().collect(),
                ("sql" | "saved" | "parameters", serde_json::Value::Null) => {}
                ("sql" | "saved", value) => return Err(wrong(format!("{name} is {}, not a text", kind(&value)))),
                ("parameters", value) => return Err(wrong(format!("parameters is {}, not an object", kind(&value)))),
                _ => {
                    let name: String = record::printable(&name).chars().take(40).collect();
                    return Err(wrong(format!("it has no member {name}; there are sql, saved and parameters")));
                }
            }
        }
        Ok(parsed)
    }

    /// The text that is asked.
    ///
    /// # Errors
    /// There is neither SQL nor the name of an investigation, or both; a value is missing, not known
    /// or wrong.
    pub fn filled(self, target: &Target, investigations: &Path) -> anyhow::Result<String> {
        let wrong = |message: String| UsageError(message);
        match (self.sql, self.saved) {
            (Some(sql), None) => {
                let values: Result<BTreeMap<String, Value>, UsageError> = self
                    .parameters
                    .into_iter()
                    .map(|(name, value)| Ok((name.clone(), plain(&name, &value)?)))
                    .collect();
                let values = values?;
                // (SQL that cannot be cut into tokens is refused where it is asked, with its place.)
                let is_plain = query_planner::parameters(&sql).map_or(true, |names| names.is_empty());
                if values.is_empty() && is_plain {
                    return Ok(sql);
                }
                Ok(with_values(&sql, &values).map_err(|error| wrong(error.to_string()))?)
            }
            (None, Some(name)) => {
                let text = |(name, value): (String, serde_json::Value)| match value {
                    serde_json::Value::String(text) => Ok((name, text)),
                    serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
                        let is = kind(&value);
                        Err(wrong(format!("{name}: a value of an investigation is a number or a text, this is {is}")))
                    }
                    other => Ok((name, other.to_string())),
                };
                let given: Result<BTreeMap<String, String>, UsageError> =
                    self.parameters.into_iter().map(text).collect();
                Ok(saved::named(investigations, &name)?.filled(target, &given?)?)
            }
            _ => Err(wrong("a question has sql, or saved: one of them".to_owned()).into()),
        }
    }
}

/// What a JSON value is.
pub fn kind(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "a truth",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a text",
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::Object(_) => "an object",
    }
}

/// A JSON value as SQL has it; the objects are those of answers (`ask::output::value_to_json`).
fn plain(name: &str, value: &serde_json::Value) -> Result<Value, UsageError> {
    let wrong = || {
        UsageError(format!(
            "{name}: a value is a number, a text, true, false, null, {{\"blob\": \"00ff\"}}, {{\"text\": \"61ff\"}} or {{\"real\": \"Inf\"}}"
        ))
    };
    match value {
        serde_json::Value::Null => Ok(Value::Null),
        serde_json::Value::Bool(is) => Ok(Value::Integer((*is).into())),
        serde_json::Value::String(text) => Ok(Value::Text(text.clone().into_bytes())),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Ok(Value::Integer(integer)),
            (None, Some(real)) if !number.is_u64() => Ok(Value::Real(real)),
            _ => Err(UsageError(format!("{name}: {number} is no integer of 64 bits"))),
        },
        serde_json::Value::Object(members) => {
            let member = |name: &str| members.get(name).and_then(serde_json::Value::as_str);
            match (members.len(), member("blob"), member("text"), member("real")) {
                (1, Some(digits), _, _) => hex::decode(digits).map(Value::Blob).map_err(|_| wrong()),
                (1, _, Some(digits), _) => hex::decode(digits).map(Value::Text).map_err(|_| wrong()),
                (1, _, _, Some("Inf")) => Ok(Value::Real(f64::INFINITY)),
                (1, _, _, Some("-Inf")) => Ok(Value::Real(f64::NEG_INFINITY)),
                _ => Err(wrong()),
            }
        }
        serde_json::Value::Array(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_question_is_said_in_words() {
        let refused = |json: &str| Sql::parsed(json.as_bytes()).unwrap_err().0;
        assert!(refused("[1]").ends_with("a list where an object is wanted"), "{}", refused("[1]"));
        assert!(refused("{\"sql\": 7}").ends_with("sql is a number, not a text"));
        assert!(refused("{\"sql\": \"x\", \"params\": {}}").contains("no member params; there are sql"));
        assert!(refused("{\"sql\": ").contains("no JSON"));
        for json in ["[1]", "{\"sql\": 7}", "{\"parameters\": []}", "7", "{\"x\": 1}"] {
            for word in ["struct", "map", "sequence", "expected"] {
                assert!(!refused(json).contains(word), "{}", refused(json));
            }
        }
    }

    #[test]
    fn values_keep_their_types() {
        let value = |json: &str| plain("x", &serde_json::from_str(json).unwrap());
        assert_eq!(value("9223372036854775807").unwrap(), Value::Integer(i64::MAX));
        assert!(value("9223372036854775808").is_err());
        assert_eq!(value("{\"blob\": \"00fF\"}").unwrap(), Value::Blob(vec![0, 255]));
        assert_eq!(value("{\"real\": \"-Inf\"}").unwrap(), Value::Real(f64::NEG_INFINITY));
        // What comes out goes in.
        let texts = [&b"61ff"[..], b"a\xff", b"a\0", b""].map(|text| Value::Text(text.to_vec()));
        let others =
            [Value::Null, Value::Integer(-1), Value::Real(0.5), Value::Real(f64::INFINITY), Value::Blob(vec![7])];
        for given in texts.into_iter().chain(others) {
            assert_eq!(value(&ask::output::value_to_json(&given).to_string()).unwrap(), given);
        }
        assert!(value("{\"text\": \"f\"}").is_err() && value("{\"text\": \"ff\", \"blob\": \"ff\"}").is_err());
        assert!(value("{\"blob\": \"0\"}").is_err() && value("{\"blob\": \"zz\"}").is_err() && value("[1]").is_err());
        let asked = Sql::with("SELECT :a", &["a=7".into(), "b=\"7\"".into(), "c=all_reduce".into(), "d=x=[1]".into()]);
        let parameters = asked.unwrap().parameters;
        assert_eq!(parameters["a"], serde_json::json!(7));
        assert_eq!(parameters["b"], serde_json::json!("7"));
        assert_eq!(parameters["c"], serde_json::json!("all_reduce"));
        assert_eq!(parameters["d"], serde_json::json!("x=[1]"));
    }
}
