//! Elementwise ops broadcast alike in one kernel and one after another, whatever the shapes: short and long rows,
//! operands that repeat along any dimension.

use ferroflow_runtime::{CompileOptions, Session, SessionOptions, Tensor};
use ferroflow_testkit::random::Rng;

const NODES: &str = "versions { producer: 2474 }
node { name: 'a' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'b' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'c' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 's' op: 'Sub' input: 'a' input: 'b' attr { key: 'T' value { type: DT_FLOAT } } }
node { name: 'abs' op: 'Abs' input: 's' attr { key: 'T' value { type: DT_FLOAT } } }
node { name: 'y' op: 'Maximum' input: 'abs' input: 'c' attr { key: 'T' value { type: DT_FLOAT } } }";

/// An operand that has some of the dimensions, with numbers that are exact.
fn operand(random: &mut Rng, dims: &[usize]) -> Tensor {
    let first = random.below(2) * random.below(dims.len() + 1);
    let kept = |d: &usize| if random.below(3) == 0 { 1 } else { *d };
    let shape: Vec<usize> = dims[first..].iter().map(kept).collect();
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i * 37 % 113) as f32).collect();
    Tensor::from_slice(&shape[..], &values).expect("small")
}

#[test]
fn fused_and_single_ops_broadcast_alike() {
    let session = |compile, threads| {
        let options = SessionOptions {
            threads,
            compile,
            ..Default::default()
        };
        Session::from_text(NODES, options).expect("valid")
    };
    let fused = [1, 2].map(|threads| session(CompileOptions::all(), threads));
    let single = session(CompileOptions::none(), 1);
    let mut random = Rng(7);
    for _ in 0..400 {
        let sizes = [1, 2, 3, 5, 8, 16, 17, 40, 130, 300];
        let dims: Vec<usize> = (0..1 + random.below(4))
            .map(|_| sizes[random.below(sizes.len())])
            .collect();
        if dims.iter().product::<usize>() > 300_000 {
            continue;
        }
        let [a, b, c] = [(); 3].map(|()| operand(&mut random, &dims));
        let feeds = [("a:0", a), ("b:0", b), ("c:0", c)];
        let run = |session: &Session| {
            let y = session.run(&feeds, &["y:0"], &[]).expect("fits").remove(0);
            (y.shape().clone(), y.slice::<f32>().expect("float").to_vec())
        };
        let want = run(&single);
        for session in &fused {
            assert!(
                run(session) == want,
                "{:?}",
                feeds.each_ref().map(|f| f.1.shape())
            );
        }
    }
}
