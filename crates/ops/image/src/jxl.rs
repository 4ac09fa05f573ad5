//! Decoding of JPEG XL files (TensorFlow: `core/kernels/image/decode_image_op.cc`), with the feature `jxl`.

use ferroflow_base::Result;

/// Pixels of one byte per sample.
pub(crate) struct Pixels {
    /// Height, width and channels.
    pub(crate) dims: [usize; 3],
    pub(crate) samples: Vec<u8>,
}

/// Whether these are a file's first bytes: of a bare stream, or of a container.
pub(crate) fn is_jxl(contents: &[u8]) -> bool {
    contents.starts_with(&[0xff, 0x0a]) || contents.starts_with(b"\0\0\0\x0cJXL \r\n\x87\n")
}

/// Refuses to build an op that only decodes these files if they cannot be decoded.
pub(crate) fn check_built() -> Result<()> {
    match cfg!(feature = "jxl") {
        true => Ok(()),
        false => Err(not_built()),
    }
}

#[cold]
fn not_built() -> ferroflow_base::Status {
    ferroflow_base::unimplemented_error!(
        "JPEG XL files are not decoded by this build: build ferroflow-cli with --features jxl"
    )
}

/// Returns the first picture.
#[cfg(not(feature = "jxl"))]
pub(crate) fn decode(_: &[u8], _: usize) -> Result<Pixels> {
    Err(not_built())
}

#[cfg(feature = "jxl")]
pub(crate) use with_feature::decode;

#[cfg(feature = "jxl")]
mod with_feature {
    use super::Pixels;
    use ferroflow_base::{Result, invalid_argument, resource_exhausted};
    use ferroflow_tensor::memory_limit;
    use jxl_oxide::{AllocTracker, InitializeResult, JxlImage};

    /// Returns the first picture. As in TensorFlow, `channels` are those of the file, or 0.
    pub(crate) fn decode(contents: &[u8], channels: usize) -> Result<Pixels> {
        let image = read(contents)?;
        let bad = || invalid_argument!("Failed to decode JXL image");
        if image.num_loaded_keyframes() == 0 {
            return Err(bad());
        }
        let format = image.pixel_format();
        let colors = if format.is_grayscale() { 1 } else { 3 };
        let kept = colors + usize::from(format.has_alpha());
        if channels != 0 && channels != kept {
            return Err(invalid_argument!(
                "Number of channels requested does not match input"
            ));
        }
        let render = image.render_frame(0).map_err(|_| bad())?;
        let mut stream = render.stream();
        let (height, width) = (stream.height() as usize, stream.width() as usize);
        let all = stream.channels() as usize;
        let n = height.checked_mul(width).and_then(|n| n.checked_mul(all));
        let n = n.filter(|n| *n <= memory_limit());
        let n =
            n.ok_or_else(|| resource_exhausted!("OOM when decoding {height} x {width} pixels"))?;
        let mut samples = vec![0; n];
        stream.write_to_buffer(&mut samples);
        if all != kept {
            // The black of four inks is left out.
            let pixels = samples.chunks_exact(all.max(1));
            let opacity = |pixel: &[u8]| pixel.last().copied().filter(|_| kept > colors);
            let kept = pixels.flat_map(|p| p.iter().copied().take(colors).chain(opacity(p)));
            samples = kept.collect();
        }
        Ok(Pixels {
            dims: [height, width, kept],
            samples,
        })
    }

    /// Reads a file, without the pixels.
    fn read(mut contents: &[u8]) -> Result<JxlImage> {
        let bad = || invalid_argument!("Failed to decode JXL header");
        let tracker = AllocTracker::with_limit(memory_limit() / 2);
        let mut start = JxlImage::builder().alloc_tracker(tracker).build_uninit();
        let taken = start.feed_bytes(contents).map_err(|_| bad())?;
        contents = contents.get(taken..).unwrap_or_default();
        let InitializeResult::Initialized(mut image) = start.try_init().map_err(|_| bad())? else {
            return Err(bad());
        };
        let bad = |_| invalid_argument!("Failed to decode JXL image");
        while !image.is_loading_done() && !contents.is_empty() {
            let taken = image.feed_bytes(contents).map_err(bad)?;
            if taken == 0 {
                break;
            }
            contents = contents.get(taken..).unwrap_or_default();
        }
        Ok(image)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// The pixels are TensorFlow's (`oracle/jxl_files.py`).
        #[test]
        fn pixels_are_tensorflows() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jxl");
            let read = |name: &str| std::fs::read(format!("{folder}/{name}")).unwrap();
            for (name, channels, tol) in [
                ("gray", 1, 0),
                ("rgb", 3, 0),
                ("rgba", 4, 0),
                // TensorFlow dithers what has more bits.
                ("deep", 3, 1),
                ("container", 3, 0),
                ("animation", 3, 0),
                ("lossy", 3, 1),
                ("lossy_rgba", 4, 1),
            ] {
                let file = read(&format!("{name}.jxl"));
                let expected = read(&format!("{name}.raw"));
                for wanted in [0, channels] {
                    let got = decode(&file, wanted).unwrap();
                    assert_eq!(got.dims, [20, 27, channels], "{name}");
                    let off = |(a, b): (&u8, &u8)| a.abs_diff(*b);
                    let most = got.samples.iter().zip(&expected).map(off).max();
                    assert_eq!(got.samples.len(), expected.len(), "{name}");
                    assert!(most <= Some(tol), "{name}: {most:?}");
                }
                let other = decode(&file, channels % 4 + 1 + channels % 2);
                assert!(other.is_err(), "{name}");
            }
        }

        #[test]
        fn damaged_files_are_errors() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jxl");
            let file = std::fs::read(format!("{folder}/rgb.jxl")).unwrap();
            for n in 2..file.len() {
                let part = decode(&file[..n], 0).map(|p| p.dims);
                assert!(part.is_err(), "{n} bytes: {part:?}");
            }
            // The sizes of the header: of up to 2^30 in each direction.
            for lie in 0..=u8::MAX {
                let mut file = file.clone();
                for at in 2..6 {
                    file[at] = lie.rotate_left(at as u32);
                    let _ = decode(&file, 0);
                }
            }
            assert_eq!(
                decode(&[&file[..], b"junk"].concat(), 0).unwrap().dims[2],
                3
            );
        }
    }
}
