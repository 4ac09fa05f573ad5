//! Tokens to attributes.

use super::ir::{Attr, Type, element_size, float_bits};
use super::lexer::Tok;
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
            Tok::Bare(word @ ("true" | "false" | "unit")) => {
                self.bump()?;
                Ok(match word {
                    "unit" => Attr::Unit,
                    word => Attr::Bool(word == "true"),
                })
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
            Tok::Bare("loc") => Ok(self.loc_in_parentheses()?.into_attr()),
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
        if let Some((alias, weight)) = self.attr_aliases.get(name) {
            let (alias, weight) = (alias.clone(), *weight);
            self.replace_alias(weight)?;
            self.bump()?;
            return Ok(alias);
        }
        if let Some(place) = self.loc_alias(name)? {
            self.bump()?;
            return Ok(place.into_attr());
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
                Ok(attr) => Ok(attr),
                Err(message) => self.error_at(&loc, message),
            },
            _ => self.error("expected a number"),
        }
    }
}

/// The number `text`, extended to 128 bits, if it fits into an integer of type `ty`.
pub(super) fn integer_bits(text: &str, negative: bool, ty: &Type) -> Option<u128> {
    let magnitude = magnitude(text)?;
    let (width, unsigned) = ty.as_integer().or(ty.is("index").then_some((64, false)))?;
    if !(1..=128).contains(&width) {
        return None;
    }
    // As in MLIR, a signless type takes what is in the range of its signed or unsigned reading.
    let in_range = match (negative, unsigned) {
        (true, true) => magnitude == 0,
        (true, false) => magnitude <= 1 << (width - 1),
        (false, _) => magnitude <= u128::MAX >> (128 - width),
    };
    let bits = match negative {
        true => magnitude.wrapping_neg(),
        false => magnitude,
    };
    in_range.then(|| extend(bits, width, unsigned))
}

/// The lowest `width` bits, the highest of them repeated if it is a sign.
pub(super) fn extend(bits: u128, width: u32, unsigned: bool) -> u128 {
    let shift = 128 - width.clamp(1, 128);
    match unsigned {
        true => bits << shift >> shift,
        false => (((bits << shift) as i128) >> shift) as u128,
    }
}

fn magnitude(text: &str) -> Option<u128> {
    match text.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The digits `text` as a number of type `ty`, or the error.
pub(super) fn integer(text: &str, negative: bool, ty: &Type) -> Result<Attr, &'static str> {
    if ty.is_float() {
        let width = 8 * element_size(ty) as u32;
        return match (text.starts_with("0x"), magnitude(text)) {
            (false, _) => Err("unexpected decimal integer literal for a floating point value"),
            _ if negative => Err("hexadecimal float literal should not have a leading minus"),
            (_, Some(bits)) if bits >> width == 0 => Ok(Attr::Float(bits as u64, ty.clone())),
            _ => Err("hexadecimal float constant out of range for type"),
        };
    }
    let out_of_range = "integer constant out of range for attribute";
    let bits = integer_bits(text, negative, ty).ok_or(out_of_range)?;
    Ok(match ty.as_integer() {
        Some((1, _)) => Attr::Bool(bits & 1 != 0),
        Some((65.., true)) => Attr::Opaque(format!("{bits} : {ty}")),
        Some((65.., false)) => Attr::Opaque(format!("{} : {ty}", bits as i128)),
        _ => Attr::Int(bits as i64, ty.clone()),
    })
}

/// Appends the little-endian bytes of a number; one byte for `i1`.
pub(crate) fn scalar_bytes(attr: &Attr, bytes: &mut Vec<u8>) -> bool {
    let (bits, n) = match attr {
        Attr::Bool(b) => (u64::from(*b), 1),
        Attr::Int(value, ty) if ty.as_integer().is_some() => (*value as u64, element_size(ty)),
        Attr::Float(bits, ty) => (*bits, element_size(ty)),
        _ => return false,
    };
    bytes.extend(bits.to_le_bytes().iter().take(n));
    n <= 8
}
