//! The parser.

use ferroflow_base::{Result, Status, invalid_argument};
use std::borrow::Cow;

/// A JSON value; strings without escapes are slices of the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string; any bytes.
    String(Cow<'a, [u8]>),
    /// A list.
    Array(Vec<Value<'a>>),
    /// An object, in the order of the text.
    Object(Vec<(Cow<'a, [u8]>, Value<'a>)>),
}

/// A number as it is written: whole numbers that fit keep their value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Int(i64),
    /// A whole number above the largest `i64`.
    Uint(u64),
    /// Another number.
    Double(f64),
}

impl Number {
    /// The value as `f64`.
    pub fn to_f64(self) -> f64 {
        match self {
            Number::Int(v) => v as f64,
            Number::Uint(v) => v as f64,
            Number::Double(v) => v,
        }
    }
}

impl<'a> Value<'a> {
    /// The first member of an object with this key.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        match self {
            Value::Object(members) => {
                let mut members = members.iter();
                members
                    .find(|(k, _)| **k == *key.as_bytes())
                    .map(|(_, v)| v)
            }
            _ => None,
        }
    }

    /// The name of its type in messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "Null",
            Value::Bool(false) => "False",
            Value::Bool(true) => "True",
            Value::Number(_) => "Number",
            Value::String(_) => "String",
            Value::Array(_) => "Array",
            Value::Object(_) => "Object",
        }
    }
}

/// Deepest nesting, which bounds the stack of what reads the value.
const MAX_DEPTH: usize = 512;

/// Parses the first value of a text.
///
/// # Errors
/// INVALID_ARGUMENT with the message and the offset of TensorFlow Serving's parser.
///
/// ```
/// use ferroflow_serving::json::{Number, Value, parse};
/// let value = parse(br#"{"x": [1, -Infinity]}"#).unwrap();
/// let Some(Value::Array(x)) = value.get("x") else { panic!() };
/// assert_eq!(x[0], Value::Number(Number::Int(1)));
/// assert_eq!(x[1], Value::Number(Number::Double(f64::NEG_INFINITY)));
/// let error = parse(b"[1, x]").unwrap_err();
/// assert_eq!(error.message(), "JSON Parse error: Invalid value. at offset: 4");
/// ```
pub fn parse(text: &[u8]) -> Result<Value<'_>> {
    // The mark of UTF-8 with which some programs begin files.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut parser = Parser { text, at: 0 };
    parser.skip_space();
    match text.get(parser.at) {
        None => Err(parser.error("The document is empty.")),
        Some(_) => parser.value(0),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    #[cold]
    fn error(&self, what: &str) -> Status {
        self.error_at(what, self.at)
    }

    #[cold]
    fn error_at(&self, what: &str, at: usize) -> Status {
        invalid_argument!("JSON Parse error: {what} at offset: {at}")
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>> {
        if depth > MAX_DEPTH {
            return Err(self.error("Terminate parsing due to Handler error."));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Value::String),
            Some(b'n') => self.word("null", Value::Null),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            _ => self.number().map(Value::Number),
        }
    }

    fn word(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>> {
        for byte in word.bytes() {
            if self.peek() != Some(byte) {
                return Err(self.error("Invalid value."));
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>> {
        self.at += 1;
        let mut values = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break self.at += 1,
                _ => {
                    return Err(self.error("Missing a comma or ] after an array element."));
                }
            }
            self.skip_space();
        }
        Ok(Value::Array(values))
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>> {
        self.at += 1;
        let mut members = Vec::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("Missing a name for object member."));
            }
            let key = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.error("Missing a colon after a name of object member."));
            }
            self.at += 1;
            self.skip_space();
            members.push((key, self.value(depth + 1)?));
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break self.at += 1,
                _ => {
                    return Err(self.error("Missing a comma or } after an object member."));
                }
            }
            self.skip_space();
        }
        Ok(Value::Object(members))
    }

    fn string(&mut self) -> Result<Cow<'a, [u8]>> {
        let quote = self.at;
        self.at += 1;
        let start = self.at;
        let text = self.text;
        let is_plain = |b: &u8| *b != b'"' && *b != b'\\' && *b >= 0x20;
        let plain = text[start..].iter().position(|b| !is_plain(b));
        self.at = plain.map_or(text.len(), |n| start + n);
        if self.peek() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(&text[start..self.at - 1]));
        }
        let mut out = text[start..self.at].to_vec();
        loop {
            match self.peek() {
                None => {
                    return Err(self.error_at("Missing a closing quotation mark in string.", quote));
                }
                Some(b'"') => break self.at += 1,
                Some(b'\\') => self.escape(&mut out)?,
                Some(byte) if byte < 0x20 => {
                    return Err(self.error("Invalid encoding in string."));
                }
                Some(byte) => {
                    out.push(byte);
                    self.at += 1;
                }
            }
        }
        Ok(Cow::Owned(out))
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let start = self.at;
        let escaped = self.text.get(self.at + 1).copied();
        self.at += 2;
        out.push(match escaped {
            Some(c @ (b'"' | b'\\' | b'/')) => c,
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'u') => {
                let c = self.unicode(start)?;
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(self.error_at("Invalid escape character in string.", start)),
        });
        Ok(())
    }

    fn unicode(&mut self, start: usize) -> Result<char> {
        let surrogate = "The surrogate pair in string is invalid.";
        let unit = self.hex4(start)?;
        let code = match unit {
            0xD800..=0xDBFF => {
                if self.text.get(self.at..self.at + 2) != Some(b"\\u") {
                    return Err(self.error_at(surrogate, start));
                }
                self.at += 2;
                let low = self.hex4(start)?;
                if !(0xDC00..=0xDFFF).contains(&low) {
                    return Err(self.error_at(surrogate, start));
                }
                0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
            }
            unit => unit,
        };
        char::from_u32(code).ok_or_else(|| self.error_at(surrogate, start))
    }

    fn hex4(&mut self, start: usize) -> Result<u32> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let number =
            digits.and_then(|d| u32::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        let number = number.ok_or_else(|| {
            self.error_at("Incorrect hex digit after \\u escape in string.", start)
        })?;
        self.at += 4;
        Ok(number)
    }

    fn digits(&mut self) -> usize {
        let rest = &self.text[self.at..];
        let n = rest
            .iter()
            .position(|b| !b.is_ascii_digit())
            .unwrap_or(rest.len());
        self.at += n;
        n
    }

    fn number(&mut self) -> Result<Number> {
        let start = self.at;
        let is_negative = self.peek() == Some(b'-');
        if is_negative {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => drop(self.digits()),
            Some(b'I' | b'N') => return self.not_finite(is_negative),
            _ => return Err(self.error("Invalid value.")),
        }
        let mut is_whole = true;
        if self.peek() == Some(b'.') {
            self.at += 1;
            is_whole = false;
            if self.digits() == 0 {
                return Err(self.error("Miss fraction part in number."));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            is_whole = false;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.error("Miss exponent in number."));
            }
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        if is_whole {
            if let Ok(v) = text.parse() {
                return Ok(Number::Int(v));
            }
            if let Ok(v) = text.parse() {
                return Ok(Number::Uint(v));
            }
        }
        match text.parse::<f64>() {
            Ok(v) if v.is_finite() => Ok(Number::Double(v)),
            _ => Err(self.error_at("Number too big to be stored in double.", start)),
        }
    }

    fn not_finite(&mut self, is_negative: bool) -> Result<Number> {
        let rest = &self.text[self.at..];
        let (value, n) = if rest.starts_with(b"NaN") {
            (f64::NAN, 3)
        } else if rest.starts_with(b"Infinity") {
            (f64::INFINITY, 8)
        } else if rest.starts_with(b"Inf") {
            (f64::INFINITY, 3)
        } else {
            return Err(self.error("Invalid value."));
        };
        self.at += n;
        Ok(Number::Double(if is_negative { -value } else { value }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: std::result::Result<Value<'_>, &str>) {
        let parsed = parse(text.as_bytes()).map_err(|e| e.message().to_string());
        let prefixed = expected.map_err(|e| format!("JSON Parse error: {e}"));
        assert_eq!(parsed, prefixed, "{text}");
    }

    #[test]
    fn values_and_errors() {
        let number = |n| Ok(Value::Number(n));
        let string = |s: &'static str| Ok(Value::String(s.as_bytes().into()));
        check("12", number(Number::Int(12)));
        check(" -7 rest", number(Number::Int(-7)));
        check("18446744073709551615", number(Number::Uint(u64::MAX)));
        check(
            "18446744073709551616",
            number(Number::Double(18446744073709551616.0)),
        );
        check("1.50e+2", number(Number::Double(150.0)));
        check("-0.0", number(Number::Double(-0.0)));
        check("-Inf", number(Number::Double(f64::NEG_INFINITY)));
        check("null", Ok(Value::Null));
        check(
            r#""a\"\\\/\b\f\n\r\té😀""#,
            string("a\"\\/\u{8}\u{c}\n\r\té😀"),
        );
        check("[]", Ok(Value::Array(vec![])));
        check("", Err("The document is empty. at offset: 0"));
        check("\u{feff}", Err("The document is empty. at offset: 0"));
        check("nul", Err("Invalid value. at offset: 3"));
        check(
            "[1 2]",
            Err("Missing a comma or ] after an array element. at offset: 3"),
        );
        check(
            "{1: 2}",
            Err("Missing a name for object member. at offset: 1"),
        );
        check(
            "{\"a\" 2}",
            Err("Missing a colon after a name of object member. at offset: 5"),
        );
        check(
            "{\"a\": 2",
            Err("Missing a comma or } after an object member. at offset: 7"),
        );
        check(
            "\"abc",
            Err("Missing a closing quotation mark in string. at offset: 0"),
        );
        check(
            "\"\\x\"",
            Err("Invalid escape character in string. at offset: 1"),
        );
        check(
            "\"\\u12g4\"",
            Err("Incorrect hex digit after \\u escape in string. at offset: 1"),
        );
        check(
            "\"\\ud800x\"",
            Err("The surrogate pair in string is invalid. at offset: 1"),
        );
        check("1.", Err("Miss fraction part in number. at offset: 2"));
        check("1e", Err("Miss exponent in number. at offset: 2"));
        check(
            "1e999",
            Err("Number too big to be stored in double. at offset: 0"),
        );
        let deep = "[".repeat(10_000);
        assert!(parse(deep.as_bytes()).is_err());
    }
}
