//! Weights as signed codes with a scale for each output channel.

/// Codes of weights and the scale of each channel.
pub(super) struct Coded {
    pub codes: Vec<i8>,
    pub scales: Vec<f32>,
}

impl Coded {
    /// Makes the codes of each of `n` last channels as large as whole multiples of them can be, on the same steps.
    pub fn widen(&mut self, n: usize) {
        let mut most = vec![1i32; n];
        for row in self.codes.chunks_exact(n.max(1)) {
            let codes = row.iter().map(|code| i32::from(*code).abs());
            most.iter_mut()
                .zip(codes)
                .for_each(|(most, code)| *most = code.max(*most));
        }
        let factors: Vec<i32> = most.iter().map(|most| MOST / most).collect();
        for row in self.codes.chunks_exact_mut(n.max(1)) {
            let codes = row.iter_mut().zip(&factors);
            codes.for_each(|(code, factor)| *code = (i32::from(*code) * factor) as i8);
        }
        let scales = self.scales.iter_mut().zip(factors);
        scales.for_each(|(scale, factor)| *scale /= factor as f32);
    }
}

/// The largest code.
const MOST: i32 = 127;
/// How far from a step a weight on it may be, as a part of the step: what rounding moves a
/// multiple of a step.
const ON_STEP: f32 = 1e-3;

/// Returns the codes of weights whose channels are the last axis, or the first one.
pub(super) fn coded(values: &[f32], n: usize, channels_first: bool) -> Coded {
    let k = values.len() / n.max(1);
    let place = |channel: usize, i: usize| match channels_first {
        true => channel * k + i,
        false => i * n + channel,
    };
    let mut most = vec![0f32; n];
    for (i, x) in values.iter().enumerate() {
        let channel = if channels_first {
            i / k.max(1)
        } else {
            i % n.max(1)
        };
        most[channel] = most[channel].max(x.abs());
    }
    let scales: Vec<f32> = most
        .iter()
        .enumerate()
        .map(|(channel, most)| scale(*most, (0..k).map(|i| values[place(channel, i)])))
        .collect();
    let codes = values.iter().enumerate().map(|(i, x)| {
        let channel = if channels_first {
            i / k.max(1)
        } else {
            i % n.max(1)
        };
        let code = (x / scales[channel]).round_ties_even();
        code.clamp(-MOST as f32, MOST as f32) as i8
    });
    Coded {
        codes: codes.collect(),
        scales,
    }
}

/// The scale of a channel: the steps that its weights were rounded to before, if they are on such steps, or
/// the smallest that reaches all.
fn scale(most: f32, values: impl Iterator<Item = f32> + Clone) -> f32 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    let on_steps = |count: &i32| {
        let step = most / *count as f32;
        let on_step = |x: f32| {
            let steps = x / step;
            (steps - steps.round()).abs() < ON_STEP
        };
        values.clone().all(on_step)
    };
    let count = (1..=MOST).find(on_steps).unwrap_or(MOST);
    most / count as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_on_few_steps_are_widened() {
        let values = [0.5, -0.3, 0.0, -0.5, 0.2, 0.0];
        let mut made = coded(&values, 3, false);
        assert_eq!(made.codes, [1, -3, 0, -1, 2, 0]);
        made.widen(3);
        assert_eq!(made.codes, [127, -126, 0, -127, 84, 0]);
        for (i, x) in values.iter().enumerate() {
            let gap = f32::from(made.codes[i]) * made.scales[i % 3] - x;
            assert!(gap.abs() < 1e-6, "{i}");
        }
    }

    #[test]
    fn weights_on_steps_keep_them() {
        // Steps of 0.02 up to 50 and of 0.3 up to 7, a channel of zeros, and one without steps.
        let values = [
            0.02 * 50.0,
            0.3 * -7.0,
            0.0,
            0.123,
            0.02 * -13.0,
            0.3 * 2.0,
            0.0,
            -0.7713,
            0.02 * 49.0,
            0.3 * 5.0,
            0.0,
            0.5001,
        ];
        let made = coded(&values, 4, false);
        assert_eq!(made.codes[..3], [50, -7, 0]);
        assert_eq!(made.codes[4..7], [-13, 2, 0]);
        assert_eq!(made.codes[7], -127);
        assert!((made.scales[0] - 0.02).abs() < 1e-6 && made.scales[2] == 1.0);
        let turned: Vec<f32> = (0..12).map(|i| values[i % 3 * 4 + i / 3]).collect();
        let first = coded(&turned, 4, true);
        assert_eq!(first.scales, made.scales);
        assert_eq!(first.codes[..3], [50, -13, 49]);
        for (i, x) in values.iter().enumerate() {
            let gap = f32::from(made.codes[i]) * made.scales[i % 4] - x;
            assert!(gap.abs() <= made.scales[i % 4] * 0.5, "{i}");
        }
    }
}
