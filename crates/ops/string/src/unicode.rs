//! UnicodeDecode, UnicodeDecodeWithOffsets, UnicodeEncode, UnicodeTranscode
//! (TensorFlow: `core/kernels/unicode_ops.cc`).

use crate::charset::{Charset, Decoded};
use crate::ngrams::int32;
use crate::strings::try_each;
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::indices::{int_vector, ints};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Bytes, PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "UnicodeDecode",
        "input: string -> row_splits: Tsplits, char_values: int32 | input_encoding: \
         string; errors: string {'strict','replace','ignore'} = 'replace'; \
         replacement_char: int = 65533; replace_control_characters: bool = false; \
         Tsplits: type {int32,int64} = int64",
    )
    .shape(decode_shape)
    .kernel(decode),
    Op::new(
        "UnicodeDecodeWithOffsets",
        "input: string -> row_splits: Tsplits, char_values: int32, char_to_byte_starts: \
         int64 | input_encoding: string; errors: string {'strict','replace','ignore'} = \
         'replace'; replacement_char: int = 65533; replace_control_characters: bool = \
         false; Tsplits: type {int32,int64} = int64",
    )
    .shape(decode_shape)
    .kernel(decode),
    Op::new(
        "UnicodeEncode",
        "input_values: int32, input_splits: Tsplits -> output: string | errors: string \
         {'ignore','replace','strict'} = 'replace'; output_encoding: string \
         {'UTF-8','UTF-16-BE','UTF-32-BE'}; replacement_char: int = 65533; Tsplits: type \
         {int32,int64} = int64",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 1)?;
        let splits = ctx.with_rank(1, 1)?;
        let n = splits.dim(0).map(|n| n.saturating_sub(1));
        ctx.set(0, PartialShape::of([n]));
        Ok(())
    })
    .kernel(encode),
    Op::new(
        "UnicodeTranscode",
        "input: string -> output: string | input_encoding: string; output_encoding: \
         string {'UTF-8','UTF-16-BE','UTF-32-BE'}; errors: string \
         {'strict','replace','ignore'} = 'replace'; replacement_char: int = 65533; \
         replace_control_characters: bool = false",
    )
    .shape(shapes::unchanged)
    .kernel(transcode),
];

fn decode_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.input(0).num_elements();
    ctx.set(0, PartialShape::of([n.map(|n| n + 1)]));
    for i in 1..ctx.num_outputs() {
        ctx.set(i, PartialShape::of_rank(1));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Strict,
    Replace,
    Ignore,
}

/// What becomes of bytes that are not characters.
#[derive(Clone, Copy)]
struct Errors {
    policy: Policy,
    replacement: u32,
    replaces_controls: bool,
}

impl Errors {
    fn of(attrs: &Attrs) -> Result<Errors> {
        let policy = match attrs.str("errors")? {
            "replace" => Policy::Replace,
            "ignore" => Policy::Ignore,
            "strict" => Policy::Strict,
            _ => {
                return Err(invalid_argument!(
                    "errors policy must be one of 'strict', 'replace', or 'ignore'"
                ));
            }
        };
        let replacement = int32(attrs.int("replacement_char")?, "replacement_char")?;
        if !(0..=0x10_ffff).contains(&replacement) {
            return Err(invalid_argument!(
                "replacement_char out of unicode codepoint range"
            ));
        }
        let has_controls = attrs.get("replace_control_characters").is_some();
        Ok(Errors {
            policy,
            replacement: replacement as u32,
            replaces_controls: has_controls && attrs.bool("replace_control_characters")?,
        })
    }

    fn is_control(&self, decoded: Decoded) -> bool {
        self.replaces_controls && decoded.code_point <= 0x1f
    }

    /// The code point to keep, if any.
    fn resolve(&self, decoded: Decoded) -> Option<u32> {
        match decoded.is_error || self.is_control(decoded) {
            false => Some(decoded.code_point),
            true if self.policy == Policy::Ignore => None,
            true => Some(self.replacement),
        }
    }
}

#[cold]
fn bad_format() -> Status {
    invalid_argument!("Invalid formatting on input string")
}

fn charset(attrs: &Attrs) -> Result<Charset> {
    let name = attrs.str("input_encoding")?;
    Charset::named(name)
        .ok_or_else(|| invalid_argument!("Could not create converter for input encoding: {name}"))
}

fn decode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let errors = Errors::of(build.attrs)?;
    let charset = charset(build.attrs)?;
    let splits_dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let texts = ctx.input(0)?.strings()?;
        let (mut splits, mut values, mut offsets) = (vec![0i64], Vec::new(), Vec::new());
        for text in texts {
            let mut offset = 0;
            charset.decode(text, |decoded| {
                if errors.policy == Policy::Strict && decoded.is_error {
                    return Err(bad_format());
                }
                if let Some(value) = errors.resolve(decoded) {
                    values.push(value as i32);
                    offsets.push(offset);
                }
                offset += decoded.len as i64;
                Ok(())
            })?;
            splits.push(values.len() as i64);
        }
        ctx.set_output(0, int_vector(splits_dtype, splits.into_iter())?)?;
        ctx.set_output(1, Tensor::vector(&values)?)?;
        if ctx.num_outputs() > 2 {
            ctx.set_output(2, Tensor::vector(&offsets)?)?;
        }
        Ok(())
    }))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Utf8,
    Utf16,
    Utf32,
}

impl Target {
    fn of(attrs: &Attrs) -> Result<Target> {
        match attrs.str("output_encoding")? {
            "UTF-8" => Ok(Target::Utf8),
            "UTF-16-BE" => Ok(Target::Utf16),
            "UTF-32-BE" => Ok(Target::Utf32),
            other => Err(invalid_argument!(
                "Invalid encoding \"{other}\": Should be one of: UTF-8, UTF-16-BE, UTF-32-BE"
            )),
        }
    }

    /// Appends a code point, which may be a surrogate if that is the replacement.
    fn push(self, code_point: u32, out: &mut Vec<u8>) {
        let character = char::from_u32(code_point);
        match (self, character) {
            (Target::Utf8, _) => {
                let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            (Target::Utf16, Some(character)) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.extend_from_slice(&unit.to_be_bytes());
                }
            }
            (Target::Utf16, None) => out.extend_from_slice(&(code_point as u16).to_be_bytes()),
            (Target::Utf32, _) => out.extend_from_slice(&code_point.to_be_bytes()),
        }
    }
}

fn transcode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let errors = Errors::of(build.attrs)?;
    let target = Target::of(build.attrs)?;
    let charset = charset(build.attrs)?;
    let same =
        target == Target::Utf8 && matches!(charset, Charset::Utf8) && !errors.replaces_controls;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        try_each(ctx, |text: &Bytes| {
            if same && std::str::from_utf8(text).is_ok() {
                return Ok(text.clone());
            }
            let mut out = Vec::with_capacity(text.len());
            charset.decode(text, |decoded| {
                let is_error = decoded.is_error || errors.is_control(decoded);
                if errors.policy == Policy::Strict && is_error {
                    return Err(bad_format());
                }
                if let Some(code_point) = errors.resolve(decoded) {
                    target.push(code_point, &mut out);
                }
                Ok(())
            })?;
            Ok(out.into())
        })
    }))
}

fn encode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let target = Target::of(build.attrs)?;
    let errors = Errors::of(build.attrs)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (values, splits) = (ctx.input(0)?, ctx.input(1)?);
        if values.shape().rank() != 1 || splits.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Both the input_tensor and input_splits should be of rank 1. "
            ));
        }
        let (values, splits) = (values.slice::<i32>()?, ints(splits)?);
        let (Some(&first), Some(&last)) = (splits.first(), splits.last()) else {
            return Err(invalid_argument!(
                "Input_splits should contain elements, but given input_values has 0 elements"
            ));
        };
        if first != 0 {
            return Err(invalid_argument!(
                "First value in input_splits must be zero."
            ));
        }
        if last != values.len() as i64 {
            return Err(invalid_argument!(
                "Last value in input_splits must be equal to length of input_tensor."
            ));
        }
        let (mut texts, mut start) = (Vec::with_capacity(splits.len() - 1), 0);
        for &end in splits.iter().skip(1) {
            let Some(end) = usize::try_from(end).ok().filter(|&end| end >= start) else {
                return Err(invalid_argument!(
                    "Values in input_splits must be equal or in ascending order."
                ));
            };
            let Some(row) = values.get(start..end) else {
                return Err(invalid_argument!(
                    "Values in input_splits must be less than or equal to input_tensor length."
                ));
            };
            texts.push(text_of(row, target, &errors)?);
            start = end;
        }
        ctx.set_output(0, Tensor::from_strings([texts.len()], texts)?)
    }))
}

fn text_of(row: &[i32], target: Target, errors: &Errors) -> Result<Bytes> {
    let mut out = Vec::with_capacity(row.len());
    for &value in row {
        let code_point = u32::try_from(value).ok();
        match code_point.filter(|&c| char::from_u32(c).is_some()) {
            Some(code_point) => target.push(code_point, &mut out),
            None if errors.policy == Policy::Strict => {
                return Err(invalid_argument!(
                    "Code point is out of range for Unicode, or is a surrogate."
                ));
            }
            None if errors.policy == Policy::Replace => target.push(errors.replacement, &mut out),
            None => {}
        }
    }
    Ok(out.into())
}
