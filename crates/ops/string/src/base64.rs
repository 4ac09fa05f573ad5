//! EncodeBase64 and DecodeBase64, in the URL-safe alphabet (TensorFlow: `tsl/platform/base64.cc`).

use crate::strings::{each_written, try_each};
use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{URL_SAFE as PADDED, URL_SAFE_NO_PAD as UNPADDED};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::Bytes;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "EncodeBase64",
        "input: string -> output: string | pad: bool = false",
    )
    .shape(shapes::unchanged)
    .kernel(|build| {
        let engine = match build.attrs.bool("pad")? {
            true => PADDED,
            false => UNPADDED,
        };
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            each_written(ctx, |s, out| {
                out.extend_from_slice(engine.encode(s).as_bytes())
            })
        }))
    })
    .not_differentiable(),
    Op::new("DecodeBase64", "input: string -> output: string")
        .shape(shapes::unchanged)
        .kernel(|_| Ok(Box::new(|ctx: &mut KernelCtx| try_each(ctx, decode))))
        .not_differentiable(),
];

/// Ignores bits behind the last byte. Padding was removed before.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

fn decode(text: &Bytes) -> Result<Bytes> {
    // Padding is optional and fills up a group of four characters.
    let padding = match &text[..] {
        _ if !text.len().is_multiple_of(4) => 0,
        [.., b'=', b'='] => 2,
        [.., b'='] => 1,
        _ => 0,
    };
    let body = &text[..text.len() - padding];
    let single = usize::from(body.len() % 4 == 1);
    let complete = &body[..body.len() - single];
    let bytes = LENIENT
        .decode(complete)
        .map_err(|_| invalid_argument!("Invalid character found in base64."))?;
    match single {
        0 => Ok(bytes.into()),
        _ => Err(invalid_argument!(
            "Base64 string length cannot be 1 modulo 4."
        )),
    }
}
