//! The host's prompt cache: what slots held before another prompt, or a closed connection,
//! took its place.
//!
//! Entries belong to a user: they serve every client of that user and nobody else. An entry
//! holds a prefix of tokens, the states at positions in it, and the KV cells up to the last
//! of these. `S` and `K` are the engine's states and KV copies, or nothing in the simulator.

use crate::slot::{Held, Slot, shared_prefix};

struct Entry<S, K> {
    owner: u32,
    held: Held<S>,
    kv: K,
    bytes: u64,
    used: u64,
}

/// See the module.
pub struct PromptCache<S, K> {
    entries: Vec<Entry<S, K>>,
    cap: u64,
    clock: u64,
}

/// What to do with a slot before a prompt starts in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// Put what the slot holds into the cache: most of it is about to be dropped.
    pub stash: bool,
    /// Entry to continue from: it restores later than the slot.
    pub load: Option<usize>,
}

impl<S: Clone, K> PromptCache<S, K> {
    /// An empty cache of at most `cap` bytes; 0 turns it off.
    pub fn new(cap: u64) -> Self {
        PromptCache { entries: Vec::new(), cap, clock: 0 }
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.bytes).sum()
    }

    /// The most it may hold.
    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True where it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What to do before `prompt` starts in a slot of user `owner`.
    pub fn swap(&self, owner: u32, slot: &Slot<S>, prompt: &[u32]) -> Swap {
        if self.cap == 0 {
            return Swap::default();
        }
        let load = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, e)| e.owner == owner)
            .map(|(i, e)| (i, restorable(&e.held, prompt)))
            .filter(|(_, at)| *at > slot.restorable(prompt))
            .max_by_key(|(_, at)| *at)
            .map(|(i, _)| i);
        // A slot that keeps half of its tokens goes on with them; only a change of subject
        // is worth a copy of the cells.
        let kept = shared_prefix(slot.tokens(), prompt);
        Swap { stash: (kept as usize) < slot.tokens().len() / 2, load }
    }

    /// Makes room for `bytes` more and says which KV copies to free. `None` where it cannot
    /// fit at all.
    pub fn make_room(&mut self, bytes: u64) -> Option<Vec<K>> {
        if bytes > self.cap {
            return None;
        }
        let mut freed = Vec::new();
        while self.bytes() + bytes > self.cap {
            freed.extend(self.drop_oldest());
        }
        Some(freed)
    }

    /// Drops the least recently used entry.
    pub fn drop_oldest(&mut self) -> Option<K> {
        let oldest = (0..self.entries.len()).min_by_key(|i| self.entries[*i].used)?;
        Some(self.entries.remove(oldest).kv)
    }

    /// Adds an entry, for which [`PromptCache::make_room`] made room. Entries of the same
    /// user that it contains go; their KV copies are returned to be freed.
    pub fn insert(&mut self, owner: u32, held: Held<S>, kv: K, bytes: u64) -> Vec<K> {
        self.clock += 1;
        let covers = |e: &Entry<S, K>| e.owner == owner && held.tokens.starts_with(&e.held.tokens);
        let (gone, kept): (Vec<_>, Vec<_>) = self.entries.drain(..).partition(covers);
        self.entries = kept;
        self.entries.push(Entry { owner, held, kv, bytes, used: self.clock });
        gone.into_iter().map(|e| e.kv).collect()
    }

    /// An entry's tokens and states, and its KV copy. Counts as a use.
    pub fn load(&mut self, entry: usize) -> Option<(Held<S>, &K)> {
        self.clock += 1;
        let entry = self.entries.get_mut(entry)?;
        entry.used = self.clock;
        Some((entry.held.clone(), &entry.kv))
    }
}

/// The last position of `held` from which `prompt` can go on; all but one of its tokens at
/// most.
fn restorable<S>(held: &Held<S>, prompt: &[u32]) -> u32 {
    let shared = shared_prefix(&held.tokens, prompt).min((prompt.len() as u32).saturating_sub(1));
    held.states.iter().map(|(p, _)| *p).filter(|p| *p <= shared).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(tokens: std::ops::Range<u32>, states: &[u32]) -> Held<u32> {
        Held {
            tokens: tokens.collect(),
            states: states.iter().map(|p| (*p, *p)).collect(),
            tail: 0,
            entries: 0,
        }
    }

    fn slot() -> Slot<u32> {
        crate::slot::tests::slot(&[], 8)
    }

    #[test]
    fn an_entry_serves_its_own_user_where_it_restores_later_than_the_slot() {
        let mut cache = PromptCache::new(100);
        cache.insert(7, held(0..50, &[20, 50]), "kv", 10);
        let prompt: Vec<u32> = (0..60).collect();
        assert_eq!(cache.swap(7, &slot(), &prompt).load, Some(0));
        assert_eq!(cache.swap(8, &slot(), &prompt).load, None);
        let other: Vec<u32> = (0..10).chain(100..150).collect();
        assert_eq!(cache.swap(7, &slot(), &other).load, None);
    }

    #[test]
    fn the_cap_holds_and_the_oldest_entry_goes_first() {
        let mut cache = PromptCache::new(100);
        for i in 0..10u32 {
            let freed = cache.make_room(30).unwrap();
            assert_eq!(freed.len(), usize::from(i >= 3));
            cache.insert(1, held(i * 100..i * 100 + 50, &[50]), i, 30);
            assert!(cache.bytes() <= 100);
        }
        assert_eq!(cache.len(), 3);
        assert!(cache.make_room(101).is_none());
    }

    #[test]
    fn a_longer_entry_replaces_the_one_it_contains() {
        let mut cache = PromptCache::new(100);
        cache.insert(1, held(0..50, &[50]), "short", 10);
        assert_eq!(cache.insert(2, held(0..80, &[80]), "other user", 10), Vec::<&str>::new());
        assert_eq!(cache.insert(1, held(0..80, &[50, 80]), "long", 10), ["short"]);
        assert_eq!(cache.len(), 2);
    }
}
