//! Tokens to the elements of tensors.

use super::attrs::{extend, integer, integer_bits, scalar_bytes};
use super::ir::{Attr, Dense, Type, element_size, float_bits};
use super::lexer::Tok;
use super::parser::{Parser, Res};

impl Parser<'_> {
    /// `dense<elements> : tensor<shape x type>`
    pub(super) fn dense(&mut self) -> Res<Attr> {
        let loc = self.loc.clone();
        self.bump()?;
        self.expect("<")?;
        let mut elements = Vec::new();
        let start = self.at;
        let shape = match self.is(">") {
            true => None,
            false => Some(self.dense_elements(&mut elements)?),
        };
        let written = self.lexer.text.get(start..self.at).unwrap_or("").trim();
        self.expect(">")?;
        self.expect(":")?;
        let ty = self.ty()?;
        let Some((dims, element)) = ty.as_ranked_tensor() else {
            let message = "elements literal must be a ranked tensor or vector type";
            return self.error_at(&loc, message);
        };
        let n_elements = dims
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
        let Some(n_elements) = n_elements else {
            return self.error_at(&loc, "elements literal type must have static shape");
        };
        // One element stands for all, if any.
        let is_splat = shape.as_ref().is_some_and(Vec::is_empty);
        let has_shape = |shape: &Vec<usize>| shape.iter().map(|n| *n as i64).eq(dims.clone());
        if !is_splat && !shape.as_ref().map_or(n_elements == 0, has_shape) {
            let shape = shape.unwrap_or_default();
            let message = format!(
                "inferred shape of elements literal ({shape:?}) does not match type ({dims:?})"
            );
            return self.error_at(&loc, message);
        }
        let is_text = |part: &Attr| matches!(part, Attr::String(_));
        if element.dialect().is_some() && elements.iter().flatten().all(is_text) {
            return Ok(Attr::Opaque(format!("dense<{written}> : {ty}")));
        }
        if is_splat
            && let [item] = &elements[..]
            && let [Attr::String(digits)] = &item[..]
            && let Some(bytes) = hex_bytes(digits)
        {
            return match from_hex(bytes, &element, n_elements) {
                Some(bytes) => Ok(Attr::Dense(Dense::new(ty, bytes))),
                None => self.error_at(&loc, "elements hex data size is invalid for provided type"),
            };
        }
        let mut bytes = Vec::new();
        for item in &elements {
            if let Err(message) = element_bytes(item, &element, &mut bytes) {
                return self.error_at(&loc, message);
            }
        }
        if n_elements == 0 {
            bytes.clear();
        }
        Ok(Attr::Dense(Dense::new(ty, bytes)))
    }

    /// Appends the elements of a list, all of whose parts have the same shape; its shape.
    fn dense_elements(&mut self, elements: &mut Vec<Vec<Attr>>) -> Res<Vec<usize>> {
        if self.eat("[")? {
            let mut inner: Option<Vec<usize>> = None;
            let mut n = 0;
            self.comma_list("]", |p| {
                n += 1;
                let loc = p.loc.clone();
                let shape = p.nested(|p| p.dense_elements(elements))?;
                if *inner.get_or_insert_with(|| shape.clone()) == shape {
                    return Ok(());
                }
                let message =
                    "tensor literal is invalid; ranks are not consistent between elements";
                p.error_at(&loc, message)
            })?;
            let mut shape = inner.unwrap_or_default();
            shape.insert(0, n);
            return Ok(shape);
        }
        let parts = match self.eat("(")? {
            true => self.comma_list(")", Self::dense_element)?,
            false => vec![self.dense_element()?],
        };
        elements.push(parts);
        Ok(Vec::new())
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
}

/// The bytes of `0x...`, in the order of the digits.
fn hex_bytes(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: &u8| (*b as char).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some((digit(high)? * 16 + digit(low)?) as u8),
        _ => None,
    };
    digits.strip_prefix(b"0x")?.chunks(2).map(byte).collect()
}

/// The elements that MLIR has these bytes for: all, or one for all.
fn from_hex(bytes: Vec<u8>, element: &Type, n_elements: usize) -> Option<Vec<u8>> {
    let integer = element.as_integer();
    if let Some((1, _)) = integer {
        // Eight to a byte.
        return match bytes[..] {
            [0] => Some(vec![0]),
            [255] => Some(vec![1]),
            _ => {
                let bit = |i: usize| bytes.get(i / 8).map_or(0, |byte| byte >> (i % 8) & 1);
                let fits = bytes.len() == n_elements.div_ceil(8);
                fits.then(|| (0..n_elements).map(bit).collect())
            }
        };
    }
    let size = element_size(element);
    if bytes.len() != size && Some(bytes.len()) != size.checked_mul(n_elements) {
        return None;
    }
    let Some((width, unsigned)) = integer.filter(|(width, _)| width % 8 != 0) else {
        return Some(bytes);
    };
    // Bits above a number's highest have no meaning.
    let parts = bytes.chunks(size).flat_map(|part| {
        let mut word = [0u8; 16];
        word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        let bits = extend(u128::from_le_bytes(word), width, unsigned);
        bits.to_le_bytes().into_iter().take(size)
    });
    Some(parts.collect())
}

/// Appends the bytes of one element (its parts, for a complex number) of type `ty`.
fn element_bytes(parts: &[Attr], ty: &Type, bytes: &mut Vec<u8>) -> Result<(), String> {
    let other = || format!("expected elements of type '{ty}'");
    if let Some(inner) = ty.of_complex() {
        let mut part = |p: &Attr| element_bytes(std::slice::from_ref(p), &inner, bytes);
        return match parts {
            [re, im] => part(re).and_then(|()| part(im)),
            [re] => part(re).and_then(|()| part(&Attr::Float(0, Type::new("f64")))),
            _ => Err(other()),
        };
    }
    let [part] = parts else {
        return Err(other());
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
            let number = integer(digits, negative, ty)?;
            if let (Attr::Int(..) | Attr::Opaque(_), Some(bits)) =
                (&number, integer_bits(digits, negative, ty))
            {
                bytes.extend(bits.to_le_bytes().iter().take(element_size(ty)));
                return Ok(());
            }
            number
        }
        _ => return Err(other()),
    };
    match scalar_bytes(&number, bytes) {
        true => Ok(()),
        false => Err(other()),
    }
}
