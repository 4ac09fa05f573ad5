//! Runs a small convolutional network on handwritten digits and draws some of them.
//!
//! `cargo run --release --example digits`

use ferroflow_runtime::{Result, Session, SessionOptions, Tensor, arrays};
use std::path::Path;

const SIDE: usize = 8;
/// Pixel values go up to this.
const MAX_PIXEL: f32 = 16.0;
const N_SHOWN: usize = 6;

fn main() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    let session = Session::open(&folder.join("digits.pb"), SessionOptions::default())?;
    let (images, labels, test) = read_data(&folder.join("digits.npz"))?;

    // The network never saw these images while it was trained.
    let pixels: Vec<f32> = test
        .iter()
        .flat_map(|&i| &images[i * SIDE * SIDE..(i + 1) * SIDE * SIDE])
        .map(|&p| p as f32 / MAX_PIXEL)
        .collect();
    let input = Tensor::from_slice([test.len(), SIDE, SIDE, 1], &pixels)?;
    let start = std::time::Instant::now();
    let output = session.run(&[("images:0", input)], &["probabilities:0"], &[])?;
    let elapsed = start.elapsed();

    let guesses: Vec<(usize, f32)> = output[0]
        .slice::<f32>()?
        .chunks(10)
        .map(|p| best(p).unwrap_or((0, 0.0)))
        .collect();
    let right = test
        .iter()
        .zip(&guesses)
        .filter(|(i, g)| labels[**i] as usize == g.0)
        .count();
    for (at, &i) in test.iter().enumerate().take(N_SHOWN) {
        draw(
            &images[i * SIDE * SIDE..(i + 1) * SIDE * SIDE],
            &guesses[at],
            labels[i],
        );
    }
    println!(
        "{right} of {} held-out digits read correctly: {:.1} % (in {:.1} ms)",
        test.len(),
        100.0 * right as f64 / test.len() as f64,
        elapsed.as_secs_f64() * 1e3
    );
    Ok(())
}

fn best(probabilities: &[f32]) -> Option<(usize, f32)> {
    let indexed = probabilities.iter().copied().enumerate();
    indexed.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Two pixels to a character cell, light to dark.
fn draw(image: &[u8], guess: &(usize, f32), label: u8) {
    const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
    for (y, row) in image.chunks(SIDE).enumerate() {
        let line: String = row
            .iter()
            .map(|&p| SHADES[(p as usize * SHADES.len() / 17).min(SHADES.len() - 1)])
            .flat_map(|c| [c, c])
            .collect();
        let note = match y {
            3 => format!("  reads {} ({:.1} %)", guess.0, guess.1 * 100.0),
            4 => format!("  it is {label}"),
            _ => String::new(),
        };
        println!("  {line}{note}");
    }
    println!();
}

/// Images, labels and the indices of the held-out images.
fn read_data(path: &Path) -> Result<(Vec<u8>, Vec<u8>, Vec<usize>)> {
    let images = arrays::read_npz_key(path, "images")?
        .slice::<u8>()?
        .to_vec();
    let labels = arrays::read_npz_key(path, "labels")?
        .slice::<u8>()?
        .to_vec();
    let test = arrays::read_npz_key(path, "test")?;
    Ok((
        images,
        labels,
        test.slice::<i32>()?.iter().map(|&i| i as usize).collect(),
    ))
}
