//! Products of small matrices, term by term as the kernels compute them, and what follows them in networks.

use super::build::{Elements, MAX_ELEMENTS, Meaning};
use super::ops::one;
use super::translate::Translator;
use ferroflow_graph::Node;
use ferroflow_opdef::{ScalarBinary, ScalarUnary, ValueId};

/// Kernels compute longer products in an order that depends on the machine
/// (`GemmShape::is_tiny`).
const MAX_TERMS: usize = 64;

/// One matrix of a product, and whether it is transposed.
struct Operand<'a> {
    values: &'a [ValueId],
    dims: [usize; 2],
    turned: bool,
}

impl Operand<'_> {
    /// Rows and columns.
    fn size(&self) -> [usize; 2] {
        let [rows, columns] = self.dims;
        match self.turned {
            true => [columns, rows],
            false => self.dims,
        }
    }

    fn at(&self, row: usize, column: usize) -> ValueId {
        match self.turned {
            true => self.values[column * self.dims[1] + row],
            false => self.values[row * self.dims[1] + column],
        }
    }
}

impl Translator<'_> {
    /// The output of a product, a bias or a rectifier; `None` if the op does something else, or the kernel's order is not
    /// known.
    pub(super) fn network(&mut self, node: &Node, inputs: &[&Elements]) -> Option<Vec<Meaning>> {
        match (node.op(), inputs) {
            ("MatMul", &[a, b]) => {
                let turned = ["transpose_a", "transpose_b"].map(|t| node.attrs.bool(t).ok());
                (a.dims.len() == 2).then_some(())?;
                one(self.products(a, b, turned)?)
            }
            ("BatchMatMul" | "BatchMatMulV2", &[a, b]) if a.dims.len() > 2 => {
                let turned = ["adj_x", "adj_y"].map(|t| node.attrs.bool(t).ok());
                one(self.products(a, b, turned)?)
            }
            ("_FusedMatMul", &[a, b, ref bias @ ..]) => {
                let turned = ["transpose_a", "transpose_b"].map(|t| node.attrs.bool(t).ok());
                (a.dims.len() == 2).then_some(())?;
                let mut out = self.products(a, b, turned)?;
                let mut ops = &node.attrs.strs("fused_ops").ok()?[..];
                if let (["BiasAdd", rest @ ..], &[bias]) = (ops, bias) {
                    (out.dims.last() == bias.dims.first() && bias.dims.len() == 1).then_some(())?;
                    let columns = bias.values.iter().cycle();
                    let sums = out.values.iter().zip(columns);
                    let sums = sums.map(|(x, b)| self.b.binary(ScalarBinary::Add, *x, *b));
                    (out.values, ops) = (sums.collect::<Option<_>>()?, rest);
                }
                match ops {
                    [] => one(out),
                    [f] => self.activation(f, &out),
                    _ => None,
                }
            }
            ("BiasAdd" | "BiasAddV1", &[a, bias]) => {
                let last = node.attrs.str("data_format").unwrap_or("NHWC") == "NHWC";
                let fits = last && bias.dims.len() == 1 && a.dims.last() == bias.dims.first();
                fits.then_some(())?;
                self.each(&[a, bias], |t, v| t.b.binary(ScalarBinary::Add, v[0], v[1]))
            }
            (f @ ("Relu" | "Relu6"), &[a]) if a.ty.is_float() => self.activation(f, a),
            _ => None,
        }
    }

    fn activation(&mut self, f: &str, a: &Elements) -> Option<Vec<Meaning>> {
        if let "Tanh" | "Sigmoid" = f {
            let f = ScalarUnary::of_op(f)?;
            return self.each(&[a], |t, v| t.b.unary(f, v[0]));
        }
        let zero = self.float(a.ty, 0.0)?;
        let limit = match f {
            "Relu" => None,
            "Relu6" => Some(self.float(a.ty, 6.0)?),
            _ => return None,
        };
        self.each(&[a], |t, v| {
            let is_below = t.b.binary(ScalarBinary::Greater, zero, v[0])?;
            let positive = t.b.select(is_below, zero, v[0])?;
            let Some(limit) = limit else {
                return Some(positive);
            };
            let is_above = t.b.binary(ScalarBinary::Less, limit, positive)?;
            t.b.select(is_above, limit, positive)
        })
    }

    /// The products of matrices in the last two dimensions; all others must be the same.
    fn products(
        &mut self,
        a: &Elements,
        b: &Elements,
        turned: [Option<bool>; 2],
    ) -> Option<Elements> {
        let (batch, of_a) = a.dims.split_last_chunk::<2>()?;
        let (others, of_b) = b.dims.split_last_chunk::<2>()?;
        let n_products: usize = batch.iter().product();
        let is_empty = a.values.is_empty() || b.values.is_empty();
        if batch != others || a.ty != b.ty || is_empty {
            return None;
        }
        let (mut values, mut size) = (Vec::new(), [0, 0]);
        let (size_a, size_b) = (a.values.len() / n_products, b.values.len() / n_products);
        for (own_a, own_b) in a.values.chunks(size_a).zip(b.values.chunks(size_b)) {
            let (a, b) = (
                Operand {
                    values: own_a,
                    dims: *of_a,
                    turned: turned[0]?,
                },
                Operand {
                    values: own_b,
                    dims: *of_b,
                    turned: turned[1]?,
                },
            );
            let ([m, k], [l, n]) = (a.size(), b.size());
            if k != l || m * n * k > MAX_TERMS || m * n * n_products > MAX_ELEMENTS {
                return None;
            }
            size = [m, n];
            for i in 0..m * n {
                values.push(self.dot(&a, &b, i / n, i % n, k)?);
            }
        }
        let mut dims = batch.to_vec();
        dims.extend(size);
        let ty = a.ty;
        Some(Elements { ty, dims, values })
    }

    /// The product of a row and a column.
    fn dot(
        &mut self,
        a: &Operand,
        b: &Operand,
        row: usize,
        column: usize,
        k: usize,
    ) -> Option<ValueId> {
        let ty = self.b.types[*a.values.first()? as usize];
        // The sum of negative zeros is zero.
        let mut sum = match ty.is_float() {
            true => Some(self.float(ty, 0.0)?),
            false => None,
        };
        for i in 0..k {
            let (x, y) = (a.at(row, i), b.at(i, column));
            let term = self.b.binary(ScalarBinary::Mul, x, y)?;
            sum = Some(match sum {
                Some(sum) => self.b.binary(ScalarBinary::Add, sum, term)?,
                None => term,
            });
        }
        sum
    }
}
