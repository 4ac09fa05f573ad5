//! Trains word vectors from a small text; words of the same kind become neighbors.
//!
//! `cargo run --release --example train_words`
//!
//! A skip-gram model with negative sampling: the vector of a word distinguishes the words around it
//! from words drawn at random. A step reads and changes only the rows of both tables that its words
//! select: the gradients are sparse, the optimizer's op is `ResourceSparseApplyAdagrad`.

use ferroflow_runtime::building::AttrValue;
use ferroflow_runtime::{DType, Result, SessionOptions, Shape, Tensor};
use ferroflow_train::{
    Callback, Dataset, FitOptions, Network, Optimizer, ProgressLine, Rule, Trainer,
};
use std::time::Instant;

/// The text consists of sentences `the ANIMAL VERB the FOOD in the PLACE`.
const KINDS: [(&str, &[&str]); 4] = [
    (
        "animal",
        &["cat", "dog", "horse", "goat", "mouse", "hen", "cow", "pig"],
    ),
    (
        "verb",
        &["eats", "smells", "finds", "steals", "wants", "leaves"],
    ),
    (
        "food",
        &["apple", "bread", "cheese", "corn", "carrot", "hay", "pear"],
    ),
    (
        "place",
        &["garden", "kitchen", "barn", "field", "street", "yard"],
    ),
];
const SENTENCES: usize = 3000;
const WINDOW: usize = 2;
const WIDTH: usize = 16;
const BATCH: usize = 128;
/// Random words drawn for each actual neighbor.
const DRAWN: usize = 5;

/// Each word with the kind of its nearest neighbor.
pub type Neighbours = Vec<(String, String)>;

/// Trains for `epochs`.
pub fn train(epochs: usize, callbacks: &mut [&mut dyn Callback]) -> Result<Neighbours> {
    let words = vocabulary();
    let mut trainer = Trainer::new(network(words.len())?, SessionOptions::default())?;
    let options = FitOptions {
        epochs,
        batch: BATCH,
        ..Default::default()
    };
    trainer.fit(&pairs(&words)?, &options, callbacks)?;
    let vectors = trainer
        .session()
        .run(&[], &["vectors/Read/ReadVariableOp:0"], &[])?;
    let vectors = vectors.first().map_or(Ok(&[][..]), |v| v.slice::<f32>())?;
    let rows: Vec<&[f32]> = vectors.chunks_exact(WIDTH).collect();
    let nearest = |i: usize| {
        let others = (0..rows.len()).filter(|j| *j != i);
        let best =
            others.max_by(|a, b| cosine(rows[i], rows[*a]).total_cmp(&cosine(rows[i], rows[*b])));
        words[best.unwrap_or(i)].to_string()
    };
    let named = words.iter().enumerate();
    Ok(named.map(|(i, w)| (w.to_string(), nearest(i))).collect())
}

/// Returns the kind of a word.
pub fn kind(word: &str) -> Option<&'static str> {
    let found = KINDS.iter().find(|(_, words)| words.contains(&word));
    found.map(|(kind, _)| *kind)
}

#[allow(dead_code, reason = "the test of the examples calls `train`")]
fn main() -> Result<()> {
    let start = Instant::now();
    let neighbours = train(3, &mut [&mut ProgressLine::default()])?;
    for (name, words) in KINDS {
        let near = neighbours
            .iter()
            .filter(|(w, _)| words.contains(&w.as_str()));
        let near: Vec<String> = near.map(|(w, n)| format!("{w} ~ {n}")).collect();
        println!("{name:>7}: {}", near.join(", "));
    }
    println!("after {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn network(words: usize) -> Result<Network> {
    let mut net = Network::new(4);
    let word = net.input("word", DType::Int32, &[None])?;
    let near = net.input("near", DType::Int32, &[None])?;
    let vector = net.embedding("vectors", word, words, WIDTH)?;

    // The actual neighbor in column 0, the random words behind it.
    let batch = net.op("Size").input(near).output()?;
    let mut int = |name: &str, value: i32| net.builder().constant(name, Tensor::scalar(value));
    let (first, last, drawn) = (
        int("zero", 0)?,
        int("words", words as i32)?,
        int("n", DRAWN as i32)?,
    );
    let axis = int("axis", 1)?;
    let shape = net.op("Pack").inputs(&[batch, drawn]).output()?;
    let random = net
        .op("RandomUniformInt")
        .input(shape)
        .input(first)
        .input(last)
        .attr("seed", AttrValue::Int(8))
        .output()?;
    let there = net.op("ExpandDims").input(near).input(axis).output()?;
    let all = net
        .op("ConcatV2")
        .inputs(&[there, random])
        .input(axis)
        .output()?;
    let contexts = net.embedding("contexts", all, words, WIDTH)?;

    // The score of each word: [batch, 1 + DRAWN, WIDTH] x [batch, WIDTH, 1].
    let minus = net.builder().constant("minus", Tensor::scalar(-1i32))?;
    let column = net.op("ExpandDims").input(vector).input(minus).output()?;
    let fit = net
        .op("BatchMatMulV2")
        .input(contexts)
        .input(column)
        .output()?;
    let fit = net
        .op("Squeeze")
        .input(fit)
        .attr("squeeze_dims", AttrValue::List(vec![AttrValue::Int(2)]))
        .output()?;
    // The first is the actual neighbor.
    let mut right = [0f32; 1 + DRAWN];
    right[0] = 1.0;
    let right = net.builder().constant(
        "right",
        Tensor::from_slice(Shape::from([1, 1 + DRAWN]), &right)?,
    )?;
    let loss = net.sigmoid_cross_entropy(fit, right)?;
    let rule = Rule::Adagrad { initial: 0.1 };
    net.minimize(loss, &Optimizer::new(rule, 0.5))?;
    Ok(net)
}

/// Returns every word once, `the` and `in` last.
fn vocabulary() -> Vec<&'static str> {
    let named = KINDS.iter().flat_map(|(_, words)| words.iter().copied());
    named.chain(["the", "in"]).collect()
}

/// Returns pairs of each word and a word at most `WINDOW` positions away.
fn pairs(words: &[&str]) -> Result<Dataset> {
    let mut seed = 9u64;
    let mut draw = |from: &[&'static str]| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        from[(seed >> 33) as usize % from.len()]
    };
    let mut text = Vec::new();
    for _ in 0..SENTENCES {
        let [animal, verb, food, place] = KINDS.map(|(_, words)| draw(words));
        text.extend(["the", animal, verb, "the", food, "in", "the", place]);
    }
    let id = |w: &str| words.iter().position(|v| *v == w).unwrap_or(0) as i32;
    let ids: Vec<i32> = text.iter().map(|w| id(w)).collect();
    let (mut word, mut near) = (Vec::new(), Vec::new());
    for (i, w) in ids.iter().enumerate() {
        let window = i.saturating_sub(WINDOW)..(i + WINDOW + 1).min(ids.len());
        for j in window.filter(|j| *j != i) {
            word.push(*w);
            near.push(ids[j]);
        }
    }
    Dataset::new(vec![
        ("word", Tensor::vector(&word)?),
        ("near", Tensor::vector(&near)?),
    ])
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f32::MIN_POSITIVE)
}
