//! Tokens to types.

use super::ir::{FunctionType, Type};
use super::lexer::{Tok, is_word};
use super::parser::{Parser, Res};

impl Parser<'_> {
    /// A list of types in parentheses, or one type.
    pub(super) fn type_list(&mut self) -> Res<Vec<Type>> {
        if self.eat("(")? {
            return self.comma_list(")", Self::ty);
        }
        Ok(vec![self.ty()?])
    }

    /// Types with commas, without parentheses.
    pub(super) fn open_type_list(&mut self) -> Res<Vec<Type>> {
        let mut types = vec![self.ty()?];
        while self.eat(",")? {
            types.push(self.ty()?);
        }
        Ok(types)
    }

    /// A type.
    pub(super) fn ty(&mut self) -> Res<Type> {
        self.nested(Self::type_inner)
    }

    fn type_inner(&mut self) -> Res<Type> {
        match self.tok.clone() {
            Tok::Punct("(") => {
                self.bump()?;
                let inputs = self.comma_list(")", Self::ty)?;
                self.expect("->")?;
                let results = self.type_list()?;
                Ok(Type::Function(FunctionType { inputs, results }.into()))
            }
            Tok::Bang(name) => {
                if let Some((alias, weight)) = self.type_aliases.get(name) {
                    let (alias, weight) = (alias.clone(), *weight);
                    self.replace_alias(weight)?;
                    self.bump()?;
                    return Ok(alias);
                }
                let body = match self.lexer.rest().starts_with('<') {
                    true => self.angle_text()?,
                    false => {
                        self.bump()?;
                        String::new()
                    }
                };
                Ok(Type::new(&format!("!{name}{body}")))
            }
            Tok::Bare(word @ ("tensor" | "vector" | "memref" | "complex" | "tuple")) => {
                let body = self.angle_text()?;
                let body = self.compact(&body)?;
                Ok(Type::new(&format!("{word}{body}")))
            }
            Tok::Bare(word) => {
                let ty = Type::new(word);
                let known =
                    ty.as_integer().is_some() || ty.is_float() || matches!(word, "index" | "none");
                if !known {
                    return self.error("expected non-function type");
                }
                self.bump()?;
                Ok(ty)
            }
            _ => self.error("expected type"),
        }
    }

    /// The text from `<` (which comes right behind the current token) to its `>`; both consumed.
    pub(super) fn angle_text(&mut self) -> Res<String> {
        let rest = self.lexer.rest();
        match angle_length(rest).and_then(|n| rest.get(..n)) {
            Some(text) => {
                self.reread(self.lexer.at + text.len())?;
                Ok(text.to_string())
            }
            None => self.error("expected '<' and a matching '>'"),
        }
    }

    /// The inner text of one of MLIR's own types without space between its parts and without
    /// aliases. Strings and what belongs to a dialect stay as they are.
    fn compact(&mut self, body: &str) -> Res<String> {
        let mut text = String::new();
        let mut rest = body;
        while let Some(first) = rest.chars().next() {
            let tail = rest.get(first.len_utf8()..).unwrap_or("");
            let mut length = first.len_utf8();
            match first {
                '"' => length = string_length(rest),
                '!' | '#' => {
                    let n = tail.bytes().take_while(|b| is_word(*b)).count();
                    let (name, behind) = tail.split_at(n);
                    let alias = self.type_aliases.get(name).filter(|_| first == '!');
                    if let Some((alias, weight)) = alias {
                        let (alias, weight) = (alias.to_string(), *weight);
                        self.replace_alias(weight)?;
                        text.push_str(&alias);
                        rest = behind;
                        continue;
                    }
                    length += n + angle_length(behind).unwrap_or(0);
                }
                _ if first.is_whitespace() => {
                    rest = tail;
                    continue;
                }
                _ => {}
            }
            let (part, behind) = rest.split_at_checked(length).unwrap_or((rest, ""));
            text.push_str(part);
            rest = behind;
        }
        Ok(text)
    }
}

/// The length of the string that `text` begins with.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (i, b) in text.bytes().enumerate().skip(1) {
        match b {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the text from its first `<` to the matching `>`.
fn angle_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut i) = (0usize, 0);
    while let Some(b) = bytes.get(i) {
        match b {
            b'"' => {
                i += string_length(text.get(i..)?);
                continue;
            }
            b'<' => depth += 1,
            // Neither of `->` and `>=` ends it.
            b'>' if i > 0 && bytes.get(i - 1) == Some(&b'-') => {}
            b'>' if bytes.get(i + 1) == Some(&b'=') => {}
            b'>' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
        if depth == 0 {
            return None;
        }
        i += 1;
    }
    None
}
