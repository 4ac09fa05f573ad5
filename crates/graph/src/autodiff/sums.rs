//! Gradients of what is the same in all iterations of a loop: those of all iterations together.

use super::IndexedSlices;
use super::conditionals::rows_of;
use super::walk::Walk;
use crate::Output;
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Expr};
use ferroflow_tensor::{DType, Tensor};

impl Walk<'_, '_, '_> {
    /// The slices of all iterations.
    pub(super) fn collected(
        &self,
        source: Output,
        slices: IndexedSlices,
        region: usize,
        parent: usize,
        prefix: &str,
    ) -> Result<IndexedSlices> {
        self.emitter.turn_to(parent, prefix);
        let shape = self.shape_behind(source, self.expr(source));
        let rows = rows_of(shape, -1);
        // Vectors; the list is in the region of the shape.
        let none = [shape.ints([0]), shape.ints([0]), shape.ints([1])];
        let vector = [
            shape.ints([-1]),
            shape.op("StridedSlice", &none),
            shape.int(0),
        ];
        let vector = shape.make("ConcatV2", &vector, &[]);
        let mut all = [slices.values, slices.indices];
        for (part, element) in all.iter_mut().zip([rows, vector]) {
            self.emitter.turn_to(parent, prefix);
            let dtype = self.expr(*part).dtype();
            let of_dtype = [("element_dtype", AttrValue::Type(dtype))];
            let empty = element.op_with("EmptyTensorList", &[element.int(-1)], &of_dtype);
            self.emitter.check()?;
            let empty = empty.output();
            let (merge, list, last) = self.emitter.emit().begin_var(region, empty)?;
            self.emitter.turn_to(region, prefix);
            let pushed = self
                .expr(list)
                .op("TensorListPushBack", &[self.expr(*part)]);
            self.emitter.check()?;
            let pushed = pushed.output();
            let list = self.emitter.emit().end_var(region, merge, pushed, last)?;
            self.emitter.turn_to(parent, prefix);
            let lengths = element.constant(Tensor::vector::<i64>(&[]));
            let joined =
                self.expr(list)
                    .op_with("TensorListConcatV2", &[element, lengths], &of_dtype);
            self.emitter.check()?;
            *part = joined.output();
        }
        Ok(IndexedSlices {
            values: all[0],
            indices: all[1],
            dense_shape: shape.output(),
        })
    }

    /// The sum of a term over all iterations.
    pub(super) fn summed(
        &self,
        source: Output,
        term: Expr<'_>,
        region: usize,
        parent: usize,
        prefix: &str,
    ) -> Result<Output> {
        self.emitter.turn_to(parent, prefix);
        let from = self.emitter.expr(source);
        let zeros = match from.dtype() {
            DType::Resource => {
                let shape = from.op("VariableShape", &[]);
                shape.op("Fill", &[from.constant(zero(term.dtype()))])
            }
            _ => from.zeros_like(),
        };
        self.emitter.check()?;
        let zeros = zeros.output();
        let (merge, value, last) = self.emitter.emit().begin_var(region, zeros)?;
        self.emitter.turn_to(region, prefix);
        let so_far = self.emitter.expr(value);
        let sum = match term.dtype() {
            DType::Variant => so_far
                .op("AddN", &[self.emitter.expr(term.output())])
                .output(),
            _ => (so_far + self.emitter.expr(term.output())).output(),
        };
        self.emitter.check()?;
        self.emitter.emit().end_var(region, merge, sum, last)
    }
}

fn zero(dtype: DType) -> Result<Tensor> {
    Tensor::zeros(dtype, ferroflow_tensor::Shape::scalar())
}
