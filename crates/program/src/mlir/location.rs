//! Places that a program writes down: `loc(...)` behind operations, and aliases of them.

use super::attr_text::{attr_text, string_text};
use super::ir::{Attr, Loc, Op};
use super::lexer::Tok;
use super::parser::{Parser, Res};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A place with all that was written of it.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) loc: Loc,
    /// The text without `loc(...)` around it.
    text: Arc<str>,
}

impl Place {
    fn of(loc: Loc) -> Place {
        let text = place_text(&loc).into();
        Place { loc, text }
    }

    /// The text, unless it is that of `loc`.
    pub(super) fn written(&self) -> Option<Arc<str>> {
        (*self.text != *place_text(&self.loc)).then(|| self.text.clone())
    }

    pub(super) fn into_attr(self) -> Attr {
        Attr::Opaque(format!("loc({})", self.text))
    }
}

/// `#name = loc(...)`: where `loc` stands, and the aliases within.
#[derive(Default)]
struct Definition<'a> {
    at: usize,
    uses: Vec<&'a str>,
}

impl<'a> Parser<'a> {
    pub(super) fn trailing_location(&mut self, op: &mut Op) -> Res {
        if self.is_word("loc") {
            let place = self.loc_in_parentheses()?;
            op.written_loc = place.written();
            op.loc = place.loc;
        }
        Ok(())
    }

    /// `loc(...)`
    pub(super) fn loc_in_parentheses(&mut self) -> Res<Place> {
        self.bump()?;
        self.expect("(")?;
        let place = self.location()?;
        self.expect(")")?;
        Ok(place)
    }

    /// The location that an alias stands for.
    pub(super) fn loc_alias(&mut self, name: &str) -> Res<Option<Place>> {
        let place = self.loc_aliases.get(name).cloned();
        if let Some(place) = &place {
            self.replace_alias(place.text.len())?;
        }
        Ok(place)
    }

    /// Reads the definitions `#name = loc(...)`, which may stand behind their uses, in any order.
    /// Errors in a definition are reported when the parser reaches it.
    pub(super) fn find_loc_aliases(&mut self) -> Res {
        let (names, definitions) = self.loc_definitions();
        let mut is_met = HashSet::new();
        for name in names {
            let mut open = vec![(name, false)];
            while let Some((name, is_ready)) = open.pop() {
                let Some(definition) = definitions.get(name) else {
                    continue;
                };
                if is_ready {
                    self.loc_definition(name, definition.at)?;
                } else if is_met.insert(name) {
                    open.push((name, true));
                    open.extend(definition.uses.iter().map(|name| (*name, false)));
                }
            }
        }
        Ok(())
    }

    fn loc_definition(&mut self, name: &str, at: usize) -> Res {
        let mut lexer = self.lexer.clone();
        lexer.at = at;
        let mut parser = Parser::new(lexer);
        parser.loc_aliases = std::mem::take(&mut self.loc_aliases);
        parser.replaced = self.replaced;
        let place = parser.bump().and_then(|()| parser.loc_in_parentheses());
        // With aliases missing, nothing would be too large later on.
        let is_too_large = parser.replace_alias(0).is_err();
        self.loc_aliases = parser.loc_aliases;
        self.replaced = parser.replaced;
        match place {
            Ok(place) => drop(self.loc_aliases.insert(name.to_string(), place)),
            Err(error) if is_too_large => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// The definitions of places, and their names in order.
    fn loc_definitions(&self) -> (Vec<&'a str>, HashMap<&'a str, Definition<'a>>) {
        let mut names = Vec::new();
        let mut definitions: HashMap<&str, Definition> = HashMap::new();
        let mut lexer = self.lexer.clone();
        let (mut before, mut last) = (Tok::End, Tok::End);
        // The definition that is read, and how many of its parentheses are open.
        let mut current: Option<(&str, usize)> = None;
        while lexer.text.contains('#') {
            let at = lexer.at;
            let tok = match lexer.next() {
                Ok(Tok::End) => break,
                Ok(tok) => tok,
                Err(_) => {
                    lexer.at = at;
                    lexer.at += lexer.rest().chars().next().map_or(1, char::len_utf8);
                    lexer.skip_space();
                    continue;
                }
            };
            match (&before, &last, &tok, &mut current) {
                (Tok::Hash(name), Tok::Punct("="), Tok::Bare("loc"), _) => {
                    let uses = Vec::new();
                    if !definitions.contains_key(name) {
                        definitions.insert(name, Definition { at, uses });
                        names.push(*name);
                        current = Some((name, 0));
                    }
                }
                (_, _, Tok::Punct("("), Some((_, depth))) => *depth += 1,
                (_, _, Tok::Punct(")"), Some((_, depth))) if *depth > 1 => *depth -= 1,
                (_, _, Tok::Punct(")"), Some(_)) => current = None,
                (_, _, Tok::Hash(used), Some((name, _))) => {
                    if let Some(definition) = definitions.get_mut(name) {
                        definition.uses.push(used);
                    }
                }
                _ => {}
            }
            (before, last) = (last, tok);
        }
        (names, definitions)
    }

    fn location(&mut self) -> Res<Place> {
        self.nested(|p| match p.tok.clone() {
            Tok::Bare("unknown") => {
                p.bump()?;
                Ok(Place::of(Loc::default()))
            }
            Tok::Bare("callsite") => {
                p.bump()?;
                p.expect("(")?;
                let callee = p.location()?;
                p.expect_word("at")?;
                let caller = p.location()?;
                p.expect(")")?;
                let name = callee.loc.name.clone();
                let text = format!("callsite({} at {})", callee.text, caller.text).into();
                let place = if callee.loc.line == 0 { caller } else { callee };
                let loc = Loc { name, ..place.loc };
                Ok(Place { loc, text })
            }
            Tok::Bare("fused") => p.fused(),
            Tok::Hash(name) => match p.loc_alias(name)? {
                Some(place) => {
                    p.bump()?;
                    Ok(place)
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

    /// `fused<metadata>[places]`, each place once and none that is unknown.
    fn fused(&mut self) -> Res<Place> {
        self.bump()?;
        let mut metadata = String::new();
        if self.eat("<")? {
            let attr = self.attribute(None)?;
            metadata = format!("<{}>", attr_text(&attr, true));
            self.expect(">")?;
        }
        self.expect("[")?;
        let mut seen = HashSet::new();
        let mut parts = self.comma_list("]", Self::location)?;
        parts.retain(|part| &*part.text != "unknown" && seen.insert(part.text.clone()));
        if metadata.is_empty() && parts.len() <= 1 {
            let only = parts.pop();
            return Ok(only.unwrap_or_else(|| Place::of(Loc::default())));
        }
        let place = parts.iter().find(|part| part.loc.line != 0);
        let place = place.map(|part| part.loc.clone()).unwrap_or_default();
        let name = parts.iter().find_map(|part| part.loc.name.clone());
        let texts: Vec<&str> = parts.iter().map(|part| &*part.text).collect();
        let texts = match texts.is_empty() {
            true => "unknown".to_string(),
            false => texts.join(", "),
        };
        Ok(Place {
            loc: Loc { name, ..place },
            text: format!("fused{metadata}[{texts}]").into(),
        })
    }

    /// `:line:column` behind the name of a file
    fn file_position(&mut self, file: &str) -> Res<Place> {
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
        Ok(Place::of(Loc {
            file: file.into(),
            line,
            column,
            name: None,
        }))
    }

    /// A name, perhaps with `(place)` behind it.
    fn named(&mut self, name: &str) -> Res<Place> {
        let quoted = string_text(name.as_bytes());
        let mut place = Place::of(Loc::default());
        place.text = quoted.as_str().into();
        if self.eat("(")? {
            let inner = self.location()?;
            self.expect(")")?;
            if &*inner.text != "unknown" {
                place.text = format!("{quoted}({})", inner.text).into();
            }
            place.loc = inner.loc;
        }
        place.loc.name = Some(name.into());
        Ok(place)
    }
}

/// A place as it is written: `loc("file":1:2)`.
pub(super) fn loc_text(loc: &Loc, written: &Option<Arc<str>>) -> String {
    match written {
        Some(text) => format!("loc({text})"),
        None => format!("loc({})", place_text(loc)),
    }
}

fn place_text(loc: &Loc) -> String {
    let quoted = |text: &str| string_text(text.as_bytes());
    let place = (loc.line != 0).then(|| {
        let (line, column) = (loc.line, loc.column);
        format!("{}:{line}:{column}", quoted(&loc.file))
    });
    match (&loc.name, place) {
        (Some(name), Some(place)) => format!("{}({place})", quoted(name)),
        (Some(name), None) => quoted(name),
        (None, Some(place)) => place,
        (None, None) => "unknown".to_string(),
    }
}
