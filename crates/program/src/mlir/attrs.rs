//! Tokens to attributes and types.

use super::ir::{Attr, Dense, FunctionType, Type, float_bits};
use super::lexer::Tok;
use super::location::loc_text;
use super::parser::{Parser, Res};
use std::collections::HashSet;

impl Parser<'_> {
    /// `{name = value, unit, "quoted name" = value}`
    pub(super) fn attr_dict(&mut self) -> Res<Vec<(String, Attr)>> {
        self.expect("{")?;
        let mut names = HashSet::new();
        self.comma_list("}", |p| {
            let name = match p.tok.clone() {
                Tok::Bare(name) => name.to_string(),
                Tok::String(name) => String::from_utf8_lossy(&name).into_owned(),
                _ => return p.error("expected attribute name"),
            };
            if !names.insert(name.clone()) {
                return p.error(format!("duplicate key '{name}' in dictionary attribute"));
            }
            p.bump()?;
            let value = match p.eat("=")? {
                true => p.attribute(None)?,
                false => Attr::Unit,
            };
            Ok((name, value))
        })
    }

    /// An attribute; numbers without a type are of type `ty`.
    pub(super) fn attribute(&mut self, ty: Option<&Type>) -> Res<Attr> {
        self.nested(|p| p.attribute_inner(ty))
    }

    fn attribute_inner(&mut self, ty: Option<&Type>) -> Res<Attr> {
        match self.tok.clone() {
            Tok::Bare("true") => {
                self.bump()?;
                Ok(Attr::Bool(true))
            }
            Tok::Bare("false") => {
                self.bump()?;
                Ok(Attr::Bool(false))
            }
            Tok::Bare("unit") => {
                self.bump()?;
                Ok(Attr::Unit)
            }
            Tok::Bare("dense") => self.dense(),
            Tok::Bare(word @ ("affine_map" | "affine_set" | "opaque" | "sparse")) => {
                let text = format!("{word}{}", self.angle_text()?);
                if word == "opaque" || word == "sparse" {
                    self.expect(":")?;
                    let ty = self.ty()?;
                    return Ok(Attr::Opaque(format!("{text} : {ty}")));
                }
                Ok(Attr::Opaque(text))
            }
            Tok::Bare("loc") => {
                let loc = self.loc_in_parentheses()?;
                Ok(Attr::Opaque(loc_text(&loc)))
            }
            Tok::Int(_) | Tok::Float(_) | Tok::Punct("-") => self.number(ty),
            Tok::String(value) => {
                self.bump()?;
                if ty.is_none() && self.eat(":")? {
                    let ty = self.ty()?;
                    if !ty.is("none") {
                        return Ok(Attr::TypedString(value, ty));
                    }
                }
                Ok(Attr::String(value))
            }
            Tok::Punct("[") => {
                self.bump()?;
                Ok(Attr::Array(self.comma_list("]", |p| p.attribute(None))?))
            }
            Tok::Punct("{") => Ok(Attr::Dict(self.attr_dict()?)),
            Tok::At(name) => {
                self.bump()?;
                let mut path = vec![name];
                while self.eat("::")? {
                    let Tok::At(name) = self.tok.clone() else {
                        return self.error("expected nested symbol reference identifier");
                    };
                    self.bump()?;
                    path.push(name);
                }
                Ok(Attr::Symbol(path))
            }
            Tok::Hash(name) => self.dialect_attribute(name),
            _ => Ok(Attr::Type(self.ty()?)),
        }
    }

    fn dialect_attribute(&mut self, name: &str) -> Res<Attr> {
        if let Some(alias) = self.attr_aliases.get(name) {
            let alias = alias.clone();
            self.bump()?;
            return Ok(alias);
        }
        let loc = self.loc.clone();
        let body = match self.lexer.rest().starts_with('<') {
            true => self.angle_text()?,
            false => {
                self.bump()?;
                String::new()
            }
        };
        // TFRT called the same attribute by two names.
        if name == "corert.shape" || name == "tfrt.shape" {
            let inner = body.trim_start_matches('<').trim_end_matches('>');
            if inner == "*" {
                return Ok(Attr::Shape(None));
            }
            let dims = inner.split('x').filter(|d| !d.is_empty());
            let dims = dims.map(|d| match d.trim() {
                "?" => Ok(-1),
                d => d.parse(),
            });
            return match dims.collect::<Result<Vec<i64>, _>>() {
                Ok(dims) if name.starts_with("corert") || !body.is_empty() => {
                    Ok(Attr::Shape(Some(dims)))
                }
                _ => {
                    let message = format!("unknown corert shape attribute: shape{body}");
                    self.error_at(&loc, message)
                }
            };
        }
        if !name.contains('.') {
            return self.error_at(&loc, format!("undefined symbol alias id '{name}'"));
        }
        Ok(Attr::Opaque(format!("#{name}{body}")))
    }

    /// The text from `<` (which comes right behind the current token) to its `>`; both consumed.
    fn angle_text(&mut self) -> Res<String> {
        let start = self.lexer.at;
        let rest = self.lexer.rest();
        let mut depth = 0usize;
        let mut previous = b' ';
        let mut in_string = false;
        for (i, b) in rest.bytes().enumerate() {
            let next = rest.as_bytes().get(i + 1);
            match b {
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'<' => depth += 1,
                // Neither of `->` and `>=` ends it.
                b'>' if previous != b'-' && next != Some(&b'=') => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        let text = rest.get(..=i).unwrap_or("").to_string();
                        self.reread(start + i + 1)?;
                        return Ok(text);
                    }
                }
                _ if depth == 0 => break,
                _ => {}
            }
            previous = b;
        }
        self.error("expected '<' and a matching '>'")
    }

    fn number(&mut self, ty: Option<&Type>) -> Res<Attr> {
        let loc = self.loc.clone();
        let negative = self.eat("-")?;
        let tok = self.tok.clone();
        if !matches!(tok, Tok::Int(_) | Tok::Float(_)) {
            return self.error("expected constant integer or floating point value");
        }
        self.bump()?;
        let ty = match ty {
            Some(ty) => ty.clone(),
            None if self.eat(":")? => self.ty()?,
            None if matches!(tok, Tok::Float(_)) => Type::new("f64"),
            None => Type::new("i64"),
        };
        match tok {
            Tok::Float(text) => {
                if !ty.is_float() {
                    let message = "floating point value not valid for specified type";
                    return self.error_at(&loc, message);
                }
                let value: f64 = text.parse().unwrap_or(0.0);
                let value = if negative { -value } else { value };
                Ok(Attr::Float(float_bits(value, &ty), ty))
            }
            Tok::Int(text) => match integer(text, negative, &ty) {
                Some(attr) => Ok(attr),
                None => self.error_at(&loc, "integer constant out of range for attribute"),
            },
            _ => self.error("expected a number"),
        }
    }

    /// `dense<elements> : tensor<shape x type>`
    fn dense(&mut self) -> Res<Attr> {
        let loc = self.loc.clone();
        self.bump()?;
        self.expect("<")?;
        let mut elements = Vec::new();
        let mut shape = Vec::new();
        let start = self.at;
        if !self.is(">") {
            self.dense_elements(&mut elements, &mut shape, 0)?;
        }
        let written = self.lexer.text.get(start..self.at).unwrap_or("").trim();
        self.expect(">")?;
        self.expect(":")?;
        let ty = self.ty()?;
        let Some((dims, element)) = ty.as_ranked_tensor() else {
            return self.error_at(
                &loc,
                "elements literal must be a ranked tensor or vector type",
            );
        };
        let n_elements = dims
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
        let Some(n_elements) = n_elements.filter(|n| *n <= 1 << 28) else {
            return self.error_at(&loc, "elements literal type must have static shape");
        };
        if let [item] = &elements[..]
            && let [Attr::String(digits)] = &item[..]
            && shape.is_empty()
            && let Some(bytes) = hex_bytes(digits)
        {
            let n_bytes = n_elements.checked_mul(super::printer::element_size(&element));
            return match n_bytes == Some(bytes.len()) {
                true => Ok(Attr::Dense(Dense { ty, bytes })),
                false => self.error_at(&loc, "elements hex data size is invalid for provided type"),
            };
        }
        let mut parts = elements.iter().flatten();
        if parts.all(|part| matches!(part, Attr::String(_))) && element.dialect().is_some() {
            if elements.len() != n_elements && !(elements.len() == 1 && shape.is_empty()) {
                return self.error_at(&loc, "texts do not fit the shape of their type");
            }
            return Ok(Attr::Opaque(format!("dense<{written}> : {ty}")));
        }
        let mut bytes = Vec::new();
        for item in &elements {
            if !element_bytes(item, &element, &mut bytes) {
                let message = format!("expected elements of type '{element}'");
                return self.error_at(&loc, message);
            }
        }
        if elements.len() == 1 && shape.is_empty() {
            let one = bytes.clone();
            bytes = one.repeat(n_elements);
        } else if elements.len() != n_elements {
            let message = format!(
                "inferred shape of elements literal ({shape:?}) does not match type ({dims:?})"
            );
            return self.error_at(&loc, message);
        }
        Ok(Attr::Dense(Dense { ty, bytes }))
    }

    fn dense_elements(
        &mut self,
        elements: &mut Vec<Vec<Attr>>,
        shape: &mut Vec<usize>,
        depth: usize,
    ) -> Res {
        if self.eat("[")? {
            let mut n = 0;
            if shape.len() == depth {
                shape.push(0);
            }
            self.comma_list("]", |p| {
                n += 1;
                p.nested(|p| p.dense_elements(elements, shape, depth + 1))
            })?;
            if let Some(dim) = shape.get_mut(depth) {
                *dim = n;
            }
            return Ok(());
        }
        if self.eat("(")? {
            let parts = self.comma_list(")", Self::dense_element)?;
            elements.push(parts);
            return Ok(());
        }
        let element = self.dense_element()?;
        elements.push(vec![element]);
        Ok(())
    }

    /// A number whose type comes later.
    fn dense_element(&mut self) -> Res<Attr> {
        let negative = self.eat("-")?;
        let tok = self.tok.clone();
        self.bump()?;
        Ok(match tok {
            Tok::Bare("true") => Attr::Bool(true),
            Tok::Bare("false") => Attr::Bool(false),
            Tok::Int(text) => {
                let sign = if negative { "-" } else { "" };
                Attr::Opaque(format!("{sign}{text}"))
            }
            Tok::Float(text) => {
                let value: f64 = text.parse().unwrap_or(0.0);
                let value = if negative { -value } else { value };
                Attr::Float(value.to_bits(), Type::new("f64"))
            }
            Tok::String(text) => Attr::String(text),
            _ => return self.error("expected element literal of primitive type"),
        })
    }

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
                if let Some(alias) = self.type_aliases.get(name) {
                    let alias = alias.clone();
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
                let body: String = self.angle_text()?.split_whitespace().collect();
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
}

/// The bytes of `0x...`, in the order of the digits.
fn hex_bytes(digits: &[u8]) -> Option<Vec<u8>> {
    let pairs = digits.strip_prefix(b"0x")?.chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.filter(|pair| pair.len() == 2).map(byte).collect()
}

/// The integer `text` of type `ty`, if it fits.
fn integer(text: &str, negative: bool, ty: &Type) -> Option<Attr> {
    let magnitude = match text.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).ok()?,
        None => text.parse().ok()?,
    };
    if ty.is_float() {
        let is_hex = text.starts_with("0x") && !negative;
        return is_hex.then_some(Attr::Float(magnitude as u64, ty.clone()));
    }
    let (width, unsigned) = match ty.as_integer() {
        Some(integer) => integer,
        None if ty.is("index") => (64, false),
        None => return None,
    };
    if !(1..=128).contains(&width) {
        return None;
    }
    let (largest, half) = (u128::MAX >> (128 - width), 1u128 << (width - 1));
    // As in MLIR, a signless type takes what is in the range of its signed or unsigned reading.
    let in_range = match (negative, unsigned) {
        (true, true) => magnitude == 0,
        (true, false) => magnitude <= half,
        (false, _) => magnitude <= largest,
    };
    if !in_range {
        return None;
    }
    if width > 64 {
        let is_high = !unsigned && !negative && magnitude >= half;
        let text = match (negative, is_high) {
            (true, _) => format!("-{magnitude}"),
            (_, true) => format!("-{}", largest - magnitude + 1),
            _ => magnitude.to_string(),
        };
        return Some(Attr::Opaque(format!("{text} : {ty}")));
    }
    if width == 1 {
        return Some(Attr::Bool(magnitude != 0));
    }
    let mut value = magnitude as u64;
    if negative {
        value = value.wrapping_neg();
    }
    let shift = 64 - width;
    let value = match unsigned {
        true => (value << shift >> shift) as i64,
        false => ((value << shift) as i64) >> shift,
    };
    Some(Attr::Int(value, ty.clone()))
}

/// Appends the bytes of one element (its parts, for a complex number) of type `ty`.
fn element_bytes(parts: &[Attr], ty: &Type, bytes: &mut Vec<u8>) -> bool {
    let complex = ty
        .text()
        .and_then(|t| t.strip_prefix("complex<")?.strip_suffix('>'));
    if let Some(inner) = complex {
        let inner = Type::new(inner);
        let mut part = |p: &Attr| element_bytes(std::slice::from_ref(p), &inner, bytes);
        return match parts {
            [re, im] => part(re) && part(im),
            [re] => part(re) && part(&Attr::Float(0, Type::new("f64"))),
            _ => false,
        };
    }
    let [part] = parts else {
        return false;
    };
    let number = match part {
        Attr::Bool(b) if ty.is("i1") => Attr::Bool(*b),
        Attr::Float(bits, _) if ty.is_float() => {
            Attr::Float(float_bits(f64::from_bits(*bits), ty), ty.clone())
        }
        Attr::Opaque(text) => {
            let (digits, negative) = match text.strip_prefix('-') {
                Some(digits) => (digits, true),
                None => (text.as_str(), false),
            };
            match integer(digits, negative, ty) {
                Some(number) => number,
                None => return false,
            }
        }
        _ => return false,
    };
    scalar_bytes(&number, bytes)
}

/// Appends the little-endian bytes of a number; one byte for `i1`.
pub(crate) fn scalar_bytes(attr: &Attr, bytes: &mut Vec<u8>) -> bool {
    let (bits, width) = match attr {
        Attr::Bool(b) => (u64::from(*b), 8),
        Attr::Int(value, ty) => match ty.as_integer() {
            Some((width, _)) => (*value as u64, width.max(8)),
            None => return false,
        },
        Attr::Float(bits, ty) => {
            let width = match ty.text() {
                Some("f64") => 64,
                Some("f32") => 32,
                _ => 16,
            };
            (*bits, width)
        }
        _ => return false,
    };
    let n = width.div_ceil(8) as usize;
    bytes.extend(bits.to_le_bytes().iter().take(n));
    n <= 8
}
