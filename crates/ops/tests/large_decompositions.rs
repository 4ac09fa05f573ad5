//! Decompositions of matrices of floats that are computed in blocks, against sketches of TensorFlow's results
//! (`oracle/large_decompositions.py`).

use ferroflow_opdef::{AttrValue, Attrs, Name};
use ferroflow_ops::registry;
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::op;
use ferroflow_testkit::random::Rng;
use serde_json::Value as Json;

/// A matrix in double precision, row by row.
struct Matrix {
    rows: usize,
    columns: usize,
    data: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, f: impl FnMut(usize) -> f64) -> Matrix {
        let data = (0..rows * columns).map(f).collect();
        Matrix {
            rows,
            columns,
            data,
        }
    }

    /// Numbers between -0.5 and 0.5 that floats hold.
    fn noise(rows: usize, columns: usize, seed: u64) -> Matrix {
        let mut rng = Rng(seed);
        Matrix::new(rows, columns, |_| rng.below(65_536) as f64 / 65_536.0 - 0.5)
    }

    fn signs(rows: usize, columns: usize, seed: u64) -> Matrix {
        let noise = Matrix::noise(rows, columns, seed).data;
        Matrix::new(rows, columns, |i| if noise[i] < 0.0 { -1.0 } else { 1.0 })
    }

    /// The input of a case.
    fn made(json: &Json) -> Matrix {
        let [rows, columns] = [0, 1].map(|i| whole(&json["shape"][i]));
        let noise = Matrix::noise(rows, columns, whole(&json["seed"]) as u64);
        let (x, is_diagonal) = (&noise.data, |i: usize| i % columns == i / columns);
        let sum = |i: usize| x[i] + x[i % columns * columns + i / columns];
        let plus = |i: usize, more: f64| if is_diagonal(i) { more } else { 0.0 };
        match json["kind"].as_str() {
            Some("symmetric") => Matrix::new(rows, columns, sum),
            Some("definite") => Matrix::new(rows, columns, |i| sum(i) + plus(i, 24.0)),
            Some("dominant") => Matrix::new(rows, columns, |i| x[i] + plus(i, 4.0)),
            _ => noise,
        }
    }

    fn of(t: &Tensor) -> Matrix {
        let (rows, columns) = match *t.shape().dims() {
            [rows, columns] => (rows, columns),
            _ => (1, t.num_elements()),
        };
        let number = |i| match t.dtype() {
            DType::Int32 => f64::from(t.slice::<i32>().unwrap()[i]),
            _ => f64::from(t.slice::<f32>().unwrap()[i]),
        };
        Matrix::new(rows, columns, number)
    }

    fn times(&self, other: &Matrix) -> Matrix {
        assert_eq!(self.columns, other.rows);
        let (n, width) = (self.columns, other.columns);
        Matrix::new(self.rows, width, |i| {
            let row = self.data[i / width * n..][..n].iter();
            let column = other.data.iter().skip(i % width).step_by(width);
            row.zip(column).map(|(a, b)| a * b).sum()
        })
    }

    fn transposed(&self) -> Matrix {
        let (rows, columns) = (self.columns, self.rows);
        Matrix::new(rows, columns, |i| {
            self.data[i % columns * rows + i / columns]
        })
    }

    /// The first columns, each times a number.
    fn scaled(&self, by: &[f64]) -> Matrix {
        let width = by.len();
        let at = |i: usize| i / width * self.columns + i % width;
        Matrix::new(self.rows, width, |i| self.data[at(i)] * by[i % width])
    }

    /// Products from both sides; what has one row as it is.
    fn sketch(self, is_vector: bool) -> Vec<f64> {
        const SKETCH: usize = 3;
        if is_vector {
            return self.data;
        }
        let right = Matrix::signs(self.columns, SKETCH, 102);
        Matrix::signs(SKETCH, self.rows, 101)
            .times(&self.times(&right))
            .data
    }
}

fn whole(json: &Json) -> usize {
    json.as_u64().expect("a whole number") as usize
}

/// Checks that the numbers agree within `tol` of the largest.
fn agree(got: &[f64], expected: &[f64], tol: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tol * largest,
            "{what}: {a} for {b} at {i}, of up to {largest}"
        );
    }
}

/// Checks that the factors restore the matrix, and that those with orthonormal columns have them.
fn check_factors(op: &str, x: &Matrix, out: &[Matrix], what: &str) {
    let (restored, bases) = match (op, out) {
        ("Qr", [q, r]) => (q.times(r), vec![q]),
        ("SelfAdjointEigV2", [e, v]) => (v.scaled(&e.data).times(&v.transposed()), vec![v]),
        ("Svd", [s, u, v]) if u.data.len() > 1 => {
            let columns = v.transposed();
            let rank = s.data.len();
            let right = Matrix::new(rank, columns.columns, |i| columns.data[i]);
            (u.scaled(&s.data).times(&right), vec![u, v])
        }
        _ => return,
    };
    agree(&restored.data, &x.data, 2e-5, what);
    for basis in bases {
        let products = basis.transposed().times(basis);
        let width = products.columns;
        let identity = Matrix::new(width, width, |i| {
            f64::from(u8::from(i / width == i % width))
        });
        agree(&products.data, &identity.data, 1e-5, what);
    }
}

fn check(case: &Json) {
    let op = case["op"].as_str().expect("an op");
    let attrs = case["attrs"].as_object().expect("attrs").iter();
    let attrs: Attrs = attrs
        .map(|(name, v)| {
            let v = AttrValue::Bool(v.as_bool().expect("a condition"));
            (Name::Owned(name.clone()), v)
        })
        .collect();
    let inputs = case["inputs"].as_array().expect("inputs").iter();
    let inputs: Vec<Matrix> = inputs.map(Matrix::made).collect();
    let what = format!("{op} {} {:?}", case["inputs"], case["attrs"]);
    let tensor = |x: &Matrix| {
        let data: Vec<f32> = x.data.iter().map(|x| *x as f32).collect();
        Tensor::from_slice([x.rows, x.columns], &data).unwrap()
    };
    let tensors = inputs.iter().map(tensor).collect();
    let out = op::run(registry(), op, &attrs, tensors).expect(&what);
    let expected = case["outputs"].as_array().expect("outputs");
    for (t, expected) in out.iter().zip(expected) {
        let dims = expected["shape"].as_array().expect("a shape").iter();
        assert_eq!(
            t.shape().dims(),
            dims.map(whole).collect::<Vec<_>>(),
            "{what}"
        );
        let mut x = Matrix::of(t);
        match expected["how"].as_str() {
            Some("absolute") => x.data.iter_mut().for_each(|x| *x = x.abs()),
            Some("plain") => {}
            _ => continue,
        }
        let numbers = expected["numbers"].as_array().expect("numbers").iter();
        let numbers: Vec<f64> = numbers.map(|x| x.as_f64().expect("a number")).collect();
        let tol = case["tol"].as_f64().expect("a tolerance");
        agree(&x.sketch(t.shape().rank() == 1), &numbers, tol, &what);
    }
    let out: Vec<Matrix> = out.iter().map(Matrix::of).collect();
    check_factors(op, &inputs[0], &out, &what);
}

#[test]
fn results_are_tensorflows() {
    let cases: Json =
        serde_json::from_str(include_str!("../rows/large_decompositions.json")).unwrap();
    cases.as_array().expect("cases").iter().for_each(check);
}
