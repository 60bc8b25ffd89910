// SPDX-License-Identifier: GPL-2.0-or-later
//! JSON whose parts know their places in the file.

use std::fmt;

use serde_core::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A file and its text.
#[derive(Debug, Clone, Copy)]
pub struct JsonText<'a> {
    /// The file's name, for messages.
    pub file: &'a str,
    /// The whole text.
    pub text: &'a str,
}

/// A value or the name of a member, as it is in the file.
#[derive(Debug, Clone, Copy)]
pub struct JsonPart<'a>(&'a RawValue);

/// The members of an object, in the order of the file.
struct JsonMembers<'a>(Vec<(JsonPart<'a>, JsonPart<'a>)>);

impl<'a> JsonPart<'a> {
    /// The parsed value.
    pub fn value(self) -> Value {
        // It parses, since the whole file was parsed.
        serde_json::from_str(self.0.get()).unwrap_or_default()
    }

    /// The text, if this is a name or a string.
    pub fn text(self) -> Option<String> {
        match self.value() {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The names and values, if this is an object.
    pub fn members(self) -> Option<Vec<(Self, Self)>> {
        serde_json::from_str::<JsonMembers<'a>>(self.0.get()).ok().map(|members| members.0)
    }

    /// The text of the file, shortened for a message.
    pub fn shown(self) -> String {
        shortened(self.0.get())
    }
}

impl<'de> Deserialize<'de> for JsonMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersReader;
        impl<'de> Visitor<'de> for MembersReader {
            type Value = JsonMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((name, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
                    members.push((JsonPart(name), JsonPart(value)));
                }
                Ok(JsonMembers(members))
            }
        }
        deserializer.deserialize_map(MembersReader)
    }
}

impl<'a> JsonText<'a> {
    /// Parses the whole text; the error is a message with its place.
    pub fn parse(self) -> Result<JsonPart<'a>, String> {
        serde_json::from_str::<&RawValue>(self.text).map(JsonPart).map_err(|error| {
            let message = error.to_string();
            let expected = message.rsplit_once(" at line ").map_or(message.as_str(), |(expected, _)| expected);
            let line = self.text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
            // `column` counts bytes.
            let before = line.get(..error.column().saturating_sub(1)).unwrap_or(line);
            let found = line.strip_prefix(before).unwrap_or_default();
            let found =
                if found.is_empty() { "the end of the line".to_owned() } else { format!("{:?}", shortened(found)) };
            let column = before.chars().count() + 1;
            format!("{}:{}:{column}: found {found}, expected JSON: {expected}", self.file, error.line())
        })
    }

    /// `FILE:LINE:COLUMN` of a part.
    pub fn place(self, part: JsonPart<'_>) -> String {
        let offset = part.0.get().as_ptr().addr().wrapping_sub(self.text.as_ptr().addr());
        let before = self.text.get(..offset).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("{}:{line}:{column}", self.file)
    }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 40;
    let line = text.lines().next().unwrap_or_default().trim_end();
    if line.len() == text.len() && line.chars().count() <= LONGEST {
        return line.to_owned();
    }
    line.chars().take(LONGEST).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_knows_its_place() {
        let json = JsonText { file: "F", text: "{\n  \"\u{e4}\": 1,  \"b\\u0063\" : {\"d\": [true,\n 2]}\n}\n" };
        let members = json.parse().unwrap().members().unwrap();
        let said: Vec<_> = members.iter().map(|(name, value)| (name.text().unwrap(), json.place(*value))).collect();
        assert_eq!(said, [("\u{e4}".to_owned(), "F:2:8".to_owned()), ("bc".to_owned(), "F:2:24".to_owned())]);
        let inner = members[1].1.members().unwrap();
        assert_eq!((json.place(inner[0].0), inner[0].1.shown().as_str()), ("F:2:25".to_owned(), "[true,..."));
    }

    #[test]
    fn what_is_no_json_is_told_with_its_place() {
        for (text, error) in [
            ("{\"a\": True}", "F:1:7: found \"True}\", expected JSON: expected value"),
            ("{\n \"a\": 1\n \"b\": 2}", "F:3:2: found \"\\\"b\\\": 2}\", expected JSON: expected `,` or `}`"),
            ("{", "F:1:1: found \"{\", expected JSON: EOF while parsing an object"),
            ("", "F:1:1: found the end of the line, expected JSON: EOF while parsing a value"),
        ] {
            assert_eq!(JsonText { file: "F", text }.parse().unwrap_err(), error);
        }
    }
}
