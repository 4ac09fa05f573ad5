//! Places that a program writes down: `loc(...)` behind operations, and aliases of them.

use super::ir::{Loc, Op};
use super::lexer::Tok;
use super::parser::{Parser, Res};

impl Parser<'_> {
    pub(super) fn trailing_location(&mut self, op: &mut Op) -> Res {
        if self.is_word("loc") {
            op.loc = self.loc_in_parentheses()?;
        }
        Ok(())
    }

    /// `loc(...)`
    pub(super) fn loc_in_parentheses(&mut self) -> Res<Loc> {
        self.bump()?;
        self.expect("(")?;
        let loc = self.location()?;
        self.expect(")")?;
        Ok(loc)
    }

    /// Reads the definitions `#name = loc(...)`, which may stand behind their uses. What cannot be
    /// read is reported when its turn comes.
    pub(super) fn find_loc_aliases(&mut self) {
        let text = self.lexer.text;
        let mut definitions = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let name = line.strip_prefix('#').and_then(|l| l.split_once(" = loc("));
            if let Some((name, _)) = name {
                definitions.push((name.to_string(), at + 1 + name.len() + " = ".len()));
            }
            at += line.len();
        }
        // Definitions may refer to others, in any order.
        for _ in 0..definitions.len().min(4) {
            for (name, at) in &definitions {
                let mut lexer = self.lexer.clone();
                lexer.at = *at;
                let mut parser = Parser::new(lexer);
                parser.loc_aliases = std::mem::take(&mut self.loc_aliases);
                let loc = parser.bump().and_then(|()| parser.loc_in_parentheses());
                self.loc_aliases = parser.loc_aliases;
                if let Ok(loc) = loc {
                    self.loc_aliases.insert(name.clone(), loc);
                }
            }
        }
    }

    fn location(&mut self) -> Res<Loc> {
        self.nested(|p| match p.tok.clone() {
            Tok::Bare("unknown") => {
                p.bump()?;
                Ok(Loc::default())
            }
            Tok::Bare("callsite") => {
                p.bump()?;
                p.expect("(")?;
                let callee = p.location()?;
                p.expect_word("at")?;
                let caller = p.location()?;
                p.expect(")")?;
                let place = if callee.line == 0 { &caller } else { &callee };
                Ok(Loc {
                    name: callee.name.clone(),
                    ..place.clone()
                })
            }
            Tok::Bare("fused") => {
                p.bump()?;
                if p.eat("<")? {
                    p.attribute(None)?;
                    p.expect(">")?;
                }
                p.expect("[")?;
                let parts = p.comma_list("]", Self::location)?;
                let place = parts.iter().find(|l| l.line != 0).cloned();
                Ok(Loc {
                    name: parts.iter().find_map(|l| l.name.clone()),
                    ..place.unwrap_or_default()
                })
            }
            Tok::Hash(name) => match p.loc_aliases.get(name).cloned() {
                Some(loc) => {
                    p.bump()?;
                    Ok(loc)
                }
                None => p.error(format!("undefined location alias id '{name}'")),
            },
            Tok::String(text) => {
                let text: &str = &String::from_utf8_lossy(&text);
                p.bump()?;
                match p.is(":") {
                    true => p.file_position(text),
                    false => p.named(text),
                }
            }
            _ => p.error("expected location instance"),
        })
    }

    /// `:line:column` behind the name of a file
    fn file_position(&mut self, file: &str) -> Res<Loc> {
        let mut numbers = [0usize; 2];
        for number in &mut numbers {
            self.expect(":")?;
            let Tok::Int(digits) = self.tok else {
                return self.error("expected integer line number in FileLineColLoc");
            };
            *number = digits.parse().unwrap_or(0);
            self.bump()?;
        }
        let [line, column] = numbers;
        Ok(Loc {
            file: file.into(),
            line,
            column,
            name: None,
        })
    }

    /// A name, perhaps with `(place)` behind it.
    fn named(&mut self, name: &str) -> Res<Loc> {
        let mut place = Loc::default();
        if self.eat("(")? {
            place = self.location()?;
            self.expect(")")?;
        }
        Ok(Loc {
            name: Some(name.into()),
            ..place
        })
    }
}

/// A place as it is written: `loc("file":1:2)`.
pub(super) fn loc_text(loc: &Loc) -> String {
    let quoted = |text: &str| super::printer::string_text(text.as_bytes());
    let place = (loc.line != 0).then(|| {
        let (line, column) = (loc.line, loc.column);
        format!("{}:{line}:{column}", quoted(&loc.file))
    });
    match (&loc.name, place) {
        (Some(name), Some(place)) => format!("loc({}({place}))", quoted(name)),
        (Some(name), None) => format!("loc({})", quoted(name)),
        (None, Some(place)) => format!("loc({place})"),
        (None, None) => "loc(unknown)".to_string(),
    }
}
