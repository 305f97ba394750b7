//! Choosing saves by expected loss: which positions to save, and which to drop,
//! given how likely the next prompt parts from this one at each.

use crate::{Kept, Positions};

/// Most points that [`choose_saves`] looks at; the rest is ignored.
pub const MAX_POINTS: usize = 128;

/// Most saves of one choice.
const SAVES: usize = 8;

/// A position and the probability that the next prompt parts there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Tokens from the prompt's start.
    pub position: u32,
    /// Probability; the points of a forecast need not add up to one.
    pub mass: f32,
}

/// Chooses at most `limit` (and at most eight) of the points past `restored` to
/// save, so that the expected number of tokens computed again is least. A save
/// must win `price` tokens. `points` is sorted by position.
///
/// Dynamic programming along the points: some hundred steps a save.
pub fn choose_saves(points: &[Point], restored: u32, limit: usize, price: f32, positions: &mut Positions) {
    let first = points.partition_point(|p| p.position <= restored);
    let points = &points[first..];
    let points = &points[..points.len().min(MAX_POINTS)];
    let n = points.len();
    let limit = limit.min(SAVES).min(n);
    // Sums of mass and of mass times distance from `restored`, before each point.
    let mut mass = [0.0f32; MAX_POINTS + 1];
    let mut moment = [0.0f32; MAX_POINTS + 1];
    for (i, p) in points.iter().enumerate() {
        mass[i + 1] = mass[i] + p.mass;
        moment[i + 1] = moment[i] + p.mass * (p.position - restored) as f32;
    }
    // What points a..b cost when they restart at distance d.
    let cost = |a: usize, b: usize, d: f32| moment[b] - moment[a] - d * (mass[b] - mass[a]);
    let distance = |i: usize| (points[i].position - restored) as f32;

    // best[i]: least cost of the points i.. when point i is saved and s more may be.
    let mut best = [0.0f32; MAX_POINTS];
    for (i, b) in best[..n].iter_mut().enumerate() {
        *b = cost(i, n, distance(i));
    }
    let mut next = [[0u8; MAX_POINTS]; SAVES];
    let mut least = cost(0, n, 0.0);
    let mut chosen = (0, n);
    for (s, step) in next.iter_mut().enumerate().take(limit) {
        for (i, &b) in best[..n].iter().enumerate() {
            let total = cost(0, i, 0.0) + b + price * (s + 1) as f32;
            if total < least {
                least = total;
                chosen = (s + 1, i);
            }
        }
        if s + 1 == limit {
            break;
        }
        // With the next save at j, point i costs level(j) - d(i) * mass[j], less what does not
        // depend on j: a line in d(i) for every j. Both d and the lines' slopes are sorted, so
        // the least line of every i is found by walking along their lower hull.
        let level = |j: usize| moment[j] + if j < n { best[j] } else { 0.0 };
        let value = |j: usize, d: f32| level(j) - d * mass[j];
        let hidden = |a: usize, b: usize, c: usize| {
            (level(b) - level(c)) * (mass[a] - mass[b]) >= (level(a) - level(b)) * (mass[b] - mass[c])
        };
        let mut better = [0.0f32; MAX_POINTS];
        let mut hull = [0u8; MAX_POINTS + 1];
        let (mut front, mut back) = (0, 0);
        for i in (0..n).rev() {
            while back - front >= 2 && hidden(hull[back - 2] as usize, hull[back - 1] as usize, i + 1) {
                back -= 1;
            }
            hull[back] = (i + 1) as u8;
            back += 1;
            let d = distance(i);
            while back - front >= 2 && value(hull[front + 1] as usize, d) <= value(hull[front] as usize, d) {
                front += 1;
            }
            let at = hull[front];
            better[i] = value(at as usize, d) - (moment[i] - d * mass[i]);
            step[i] = at;
        }
        best = better;
    }
    let (mut saves, mut at) = chosen;
    while saves > 0 && at < n {
        positions.push(points[at].position);
        saves -= 1;
        if saves > 0 {
            at = next[saves - 1][at] as usize;
        }
    }
}

/// The checkpoint whose loss would cost the fewest expected tokens: an index
/// into `kept`, or `kept.len()` when that is the incoming one. The answer that
/// [`Placement::evict`](crate::Placement::evict) wants.
#[must_use]
pub fn least_loss(points: &[Point], kept: &[Kept], incoming: u32) -> usize {
    let new = kept.partition_point(|k| k.position < incoming);
    // The i-th of all checkpoints, the new one among them.
    let index = |i: usize| match i.cmp(&new) {
        core::cmp::Ordering::Less => i,
        core::cmp::Ordering::Equal => kept.len(),
        core::cmp::Ordering::Greater => i - 1,
    };
    let position = |i: usize| kept.get(index(i)).map_or(incoming, |k| k.position);
    let mut least = (f32::INFINITY, kept.len());
    for i in 0..=kept.len() {
        let here = position(i);
        let before = if i == 0 { 0 } else { position(i - 1) };
        let end = if i == kept.len() { u32::MAX } else { position(i + 1) };
        let wanted: f32 =
            points.iter().filter(|p| p.position >= here && p.position < end).map(|p| p.mass).sum();
        let loss = wanted * here.saturating_sub(before) as f32;
        if loss < least.0 {
            least = (loss, index(i));
        }
    }
    least.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(position: u32, mass: f32) -> Point {
        Point { position, mass }
    }

    fn chosen(points: &[Point], restored: u32, limit: usize, price: f32) -> Positions {
        let mut positions = Positions::new();
        choose_saves(points, restored, limit, price, &mut positions);
        positions
    }

    /// What `saves` leave to compute again, by the definition.
    fn loss(points: &[Point], restored: u32, saves: &[u32], price: f32) -> f32 {
        let again: f32 = points
            .iter()
            .filter(|p| p.position > restored)
            .map(|p| {
                let start = saves.iter().filter(|&&s| s <= p.position).max();
                p.mass * (p.position - start.copied().unwrap_or(restored)) as f32
            })
            .sum();
        again + price * saves.len() as f32
    }

    #[test]
    fn no_other_choice_of_saves_costs_less() {
        let mut seed = 7u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % below
        };
        for _ in 0..300 {
            let mut points = [point(0, 0.0); 7];
            let mut at = 0;
            for p in &mut points {
                at += 1 + random(60);
                *p = point(at, random(100) as f32 / 100.0);
            }
            let restored = random(60);
            let limit = random(5) as usize;
            let price = random(8) as f32;
            let found = chosen(&points, restored, limit, price);
            let mut least = f32::INFINITY;
            for set in 0u32..1 << points.len() {
                let mut saves = [0; 7];
                let mut n = 0;
                for (i, p) in points.iter().enumerate() {
                    if set >> i & 1 == 1 && p.position > restored {
                        saves[n] = p.position;
                        n += 1;
                    }
                }
                if n <= limit {
                    least = least.min(loss(&points, restored, &saves[..n], price));
                }
            }
            let cost = loss(&points, restored, found.as_slice(), price);
            assert!(cost <= least + 1e-3, "{cost} is more than {least}");
            assert!(found.as_slice().len() <= limit);
        }
    }

    #[test]
    fn nothing_expected_means_nothing_saved() {
        assert_eq!(chosen(&[], 0, 6, 1.0).as_slice(), []);
        assert_eq!(chosen(&[point(5, 1.0)], 5, 6, 1.0).as_slice(), []);
        assert_eq!(chosen(&[point(9, 1.0)], 5, 0, 1.0).as_slice(), []);
        assert_eq!(chosen(&[point(9, 1.0)], 5, 6, 4.5).as_slice(), []);
    }

    #[test]
    fn the_least_wanted_checkpoint_is_dropped() {
        let kept = |position| Kept { position, ..Kept::default() };
        let points = [point(100, 0.5), point(210, 0.1), point(300, 0.4)];
        let held = [kept(100), kept(205), kept(300)];
        assert_eq!(least_loss(&points, &held, 302), 3);
        assert_eq!(least_loss(&points, &held, 210), 1);
        assert_eq!(least_loss(&[], &held, 400), 0);
    }
}
