//! The choice of a token from a row of logits.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How tokens are chosen. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep this many of the likeliest; 0 keeps all.
    pub top_k: u32,
    /// Keep the likeliest whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens already in the answer;
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// Seed; equal seeds give equal answers.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// Chooses tokens for one answer.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    random: ChaCha8Rng,
}

impl Sampler {
    /// A sampler at the start of an answer.
    pub fn new(options: SamplerOptions) -> Self {
        let random = ChaCha8Rng::seed_from_u64(options.seed);
        Sampler { options, random }
    }

    /// A token of `logits` for which `allowed` holds, given the answer so far; `None` where
    /// nothing is allowed. Ties go to the lowest id.
    pub fn choose(&mut self, logits: &[f32], answer: &[u32], allowed: impl Fn(u32) -> bool) -> Option<u32> {
        let candidates =
            (0..logits.len() as u32).filter(|id| allowed(*id)).map(|id| (id, logits[id as usize])).collect();
        self.choose_among(candidates, answer)
    }

    /// As [`Sampler::choose`], among these tokens and their logits, ids ascending. A choice of
    /// one takes nothing from the stream of random numbers, so it does not matter whether such
    /// a token's logit was computed at all.
    ///
    /// A draft is verified by this choice being equal to it. For drafts without a probability
    /// of their own, as ours are, that is rejection sampling: a draft `d` is accepted with the
    /// target's `p(d)`, and what replaces a rejected one follows `p` without `d`.
    pub fn choose_among(&mut self, mut candidates: Vec<(u32, f32)>, answer: &[u32]) -> Option<u32> {
        if let [(only, _)] = candidates[..] {
            return Some(only);
        }
        if self.options.repetition_penalty != 1.0 {
            for (id, logit) in &mut candidates {
                if answer.contains(id) {
                    let r = self.options.repetition_penalty;
                    *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
                }
            }
        }
        if self.options.temperature <= 0.0 {
            let first = *candidates.first()?;
            let better = |best: (u32, f32), c: (u32, f32)| if c.1 > best.1 { c } else { best };
            return Some(candidates.into_iter().fold(first, better).0);
        }
        self.draw(candidates)
    }

    fn draw(&mut self, mut candidates: Vec<(u32, f32)>) -> Option<u32> {
        let o = &self.options;
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if o.top_k > 0 {
            candidates.truncate(o.top_k as usize);
        }
        let top = candidates.first()?.1;
        let mut weights: Vec<f64> =
            candidates.iter().map(|(_, l)| (f64::from(l - top) / f64::from(o.temperature)).exp()).collect();
        if o.min_p > 0.0 {
            let keep = weights.iter().take_while(|w| **w >= f64::from(o.min_p)).count().max(1);
            weights.truncate(keep);
        }
        if o.top_p < 1.0 {
            let total: f64 = weights.iter().sum();
            let mut sum = 0.0;
            let mut before = |w: &f64| {
                let short = sum < f64::from(o.top_p) * total;
                sum += w;
                short
            };
            let keep = weights.iter().take_while(|w| before(w)).count().max(1);
            weights.truncate(keep);
        }
        let total: f64 = weights.iter().sum();
        // 53 random bits: a double in [0, 1).
        let unit = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = unit * total;
        for ((id, _), w) in candidates.iter().zip(&weights) {
            if left < *w {
                return Some(*id);
            }
            left -= w;
        }
        candidates.get(weights.len().saturating_sub(1)).map(|c| c.0)
    }
}

/// The `count` likeliest tokens with their natural log-probabilities, likeliest first.
pub fn top_logprobs(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|l| f64::from(l - top).exp()).sum();
    let log_total = f64::from(top) + total.ln();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let count = count.min(ids.len());
    let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if count < ids.len() {
        ids.select_nth_unstable_by(count, order);
        ids.truncate(count);
    }
    ids.sort_by(order);
    ids.into_iter().map(|id| (id, (f64::from(logits[id as usize]) - log_total) as f32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(options: SamplerOptions, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(options);
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.choose(logits, &[], |_| true).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equal_logits_and_obeys_the_mask() {
        let mut sampler = Sampler::new(SamplerOptions::default());
        assert_eq!(sampler.choose(&[1.0, 3.0, 3.0], &[], |_| true), Some(1));
        assert_eq!(sampler.choose(&[1.0, 3.0, 3.0], &[], |id| id == 0), Some(0));
        assert_eq!(sampler.choose(&[1.0, 3.0, 3.0], &[], |_| false), None);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0f32, 1.0, 2.0];
        let options = SamplerOptions { temperature: 1.0, seed: 5, ..Default::default() };
        let draws = 20_000;
        let counts = counts(options, &logits, draws);
        let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        for (count, logit) in counts.iter().zip(logits) {
            let want = f64::from(logit).exp() / total;
            let got = *count as f64 / draws as f64;
            assert!((got - want).abs() < 0.015, "{got} against {want}");
        }
    }

    #[test]
    fn cuts_leave_out_the_unlikely() {
        let logits = [0.0f32, 1.0, 2.0, 5.0];
        let hot = SamplerOptions { temperature: 1.0, seed: 1, ..Default::default() };
        assert_eq!(counts(SamplerOptions { top_k: 1, ..hot.clone() }, &logits, 500), [0, 0, 0, 500]);
        assert_eq!(counts(SamplerOptions { top_p: 0.5, ..hot.clone() }, &logits, 500), [0, 0, 0, 500]);
        let kept = counts(SamplerOptions { min_p: 0.04, ..hot }, &logits, 2000);
        assert_eq!((kept[0], kept[1]), (0, 0));
        assert!(kept[2] > 0);
    }

    #[test]
    fn equal_seeds_give_equal_draws() {
        let options = SamplerOptions { temperature: 2.0, seed: 9, ..Default::default() };
        assert_eq!(counts(options.clone(), &[0.0; 8], 100), counts(options, &[0.0; 8], 100));
    }

    #[test]
    fn a_penalty_discourages_tokens_of_the_answer() {
        let mut sampler = Sampler::new(SamplerOptions { repetition_penalty: 2.0, ..Default::default() });
        assert_eq!(sampler.choose(&[3.0, 2.0], &[0], |_| true), Some(1));
        assert_eq!(sampler.choose(&[-1.0, -1.5], &[0], |_| true), Some(1));
    }

    #[test]
    fn log_probabilities_are_normalised_and_sorted() {
        let top = top_logprobs(&[0.0, 2.0, 1.0], 2);
        assert_eq!((top[0].0, top[1].0), (1, 2));
        let total: f64 = [0.0f64, 2.0, 1.0].iter().map(|l| l.exp()).sum();
        assert!((f64::from(top[0].1) - (2.0 - total.ln())).abs() < 1e-6);
    }
}
