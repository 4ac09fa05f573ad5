//! Sound as the bytes of a WAV file with 16-bit samples (TensorFlow: `core/lib/wav/wav_io.cc`).

use ferroflow_base::{Result, invalid_argument};

/// Encodes samples between -1 and 1, frame by frame with `channels` samples each.
///
/// # Errors
/// INVALID_ARGUMENT if the rate is zero or a size does not fit into the file's header.
pub fn encode(samples: &[f32], rate: u32, channels: usize) -> Result<Vec<u8>> {
    if rate == 0 {
        return Err(invalid_argument!(
            "sample_rate must be in (0, 2^32), got: {rate}"
        ));
    }
    let channels = u16::try_from(channels)
        .ok()
        .filter(|&n| n > 0)
        .ok_or_else(|| invalid_argument!("num_channels must be in (0, 2^16), got: {channels}"))?;
    let per_frame = 2 * u32::from(channels);
    let size = samples.len().checked_mul(2);
    let size = size.and_then(|n| u32::try_from(n).ok()?.checked_add(44));
    let (Some(size), Ok(per_frame16)) = (size, u16::try_from(per_frame)) else {
        return Err(invalid_argument!(
            "Provided channels and frames cannot be encoded as a WAV."
        ));
    };
    let mut out = Vec::with_capacity(size as usize);
    out.extend(b"RIFF");
    out.extend((size - 8).to_le_bytes());
    out.extend(b"WAVEfmt ");
    out.extend(16u32.to_le_bytes());
    out.extend(1u16.to_le_bytes());
    out.extend(channels.to_le_bytes());
    out.extend(rate.to_le_bytes());
    out.extend(rate.wrapping_mul(per_frame).to_le_bytes());
    out.extend(per_frame16.to_le_bytes());
    out.extend(16u16.to_le_bytes());
    out.extend(b"data");
    out.extend((size - 44).to_le_bytes());
    for x in samples {
        // The conversion saturates.
        out.extend(((x * 32768.0).round() as i16).to_le_bytes());
    }
    Ok(out)
}
