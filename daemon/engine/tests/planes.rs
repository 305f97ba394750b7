//! A verify pass may be cut back to any of its planes: what is then held (KV cells, recurrent
//! and convolution states, MTP cells and hidden row) is to the bit what decoding only the
//! accepted tokens leaves.

mod golden_models;

use golden_models::{Golden, model_files, root};
use std::path::PathBuf;
use std::sync::Arc;
use tandem_cpu::{Cpu, CpuConfig};
use tandem_engine::pass::{DraftColumn, DraftHead, Kind, Pass, Segment};
use tandem_engine::state::{KvCache, State};
use tandem_engine::switches::{KvType, PrefillProducts, Switches};
use tandem_program::Device;

fn cpu() -> Box<dyn Device> {
    Box::new(Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() }).expect("the CPU device"))
}

/// The project's own tiny models in F32 and Q4_0.
fn models() -> Vec<PathBuf> {
    let mut files = model_files(false);
    files.extend(model_files(true));
    files.retain(|f| {
        let name = f.file_stem().and_then(|s| s.to_str()).unwrap_or("");
        f.starts_with(root().join("tests/golden")) && !name.contains("q8_0") && !name.contains("q4_k")
    });
    assert_eq!(files.len(), 3, "{files:?}");
    files
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn best(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a vocabulary") as u32
}

/// Decoding one by one behind a prompt: tokens, the logits each was chosen from, and what was
/// held before each.
struct Walk {
    position: u32,
    tokens: Vec<u32>,
    logits: Vec<Vec<u32>>,
    mtp: Vec<Vec<u32>>,
    states: Vec<Arc<State>>,
    held: Vec<Vec<u8>>,
}

fn prompt(g: &Golden, length: u32) -> Vec<u32> {
    let vocabulary = g.executor.dims().vocabulary;
    (0..length).map(|i| (i * i * 31 + i * 7 + length) % vocabulary).collect()
}

fn walk(g: &mut Golden, length: u32, count: usize) -> Walk {
    let prompt = prompt(g, length);
    let (mut state, mut logits, _) =
        g.run(Kind::Prefill, &prompt, 0, g.zero(), vec![length - 1], vec![length - 1]);
    let mut walk = Walk {
        position: length,
        tokens: Vec::new(),
        logits: vec![bits(&logits[0])],
        mtp: Vec::new(),
        states: Vec::new(),
        held: Vec::new(),
    };
    for i in 0..=count as u32 {
        walk.held.push(g.executor.contents(&g.kv(), &state, length + i).expect("read"));
        walk.states.push(Arc::clone(&state));
        let token = best(&logits[0]);
        walk.tokens.push(token);
        let mtp;
        (state, logits, mtp) = g.run(Kind::Decode, &[token], length + i, state, vec![0], vec![0]);
        walk.logits.push(bits(&logits[0]));
        walk.mtp.push(bits(&mtp[0]));
    }
    walk
}

/// Runs `columns` behind the walk's prompt with a plane after each, in a cache of its own.
fn verify(g: &mut Golden, w: &Walk, columns: &[u32], kv: KvCache) -> (Vec<Arc<State>>, Vec<Vec<u32>>) {
    let planes: Vec<Arc<State>> = columns.iter().map(|_| g.executor.take_state().expect("a state")).collect();
    let segment = Segment {
        states: (0..).zip(planes.iter().map(Arc::clone)).collect(),
        logits: (0..columns.len() as u32).collect(),
        mtp: true,
        ..Segment::new(Kind::Decode, columns.to_vec(), w.position, kv, Arc::clone(&w.states[0]))
    };
    let out = g.executor.run(&Pass { segments: vec![segment] }).expect("pass");
    (planes, out.logits.iter().map(|row| bits(row)).collect())
}

#[test]
fn every_number_of_drafts_can_be_rejected_at_every_place() {
    let switches = [
        Switches { kv_type: KvType::F32, ..Switches::default() },
        Switches { shared_verify: false, fused_swiglu: false, ..Switches::default() },
    ];
    for file in models() {
        for (switches, length) in switches.iter().zip([37u32, 64]) {
            let mut g = Golden::open(&file, cpu(), switches.clone());
            let w = walk(&mut g, length, 9);
            let walked = g.kv();
            let vocabulary = g.executor.dims().vocabulary;
            for drafts in 0..=7usize {
                for right in 0..=drafts {
                    let what = format!("{}: {right} of {drafts} drafts right", file.display());
                    let kv = g.executor.new_kv(128).expect("a cache");
                    g.executor.copy_kv(&walked, Some(kv), length).expect("a copy");
                    // Drafting leaves provisional MTP cells, which the verify pass must replace.
                    let draft = DraftColumn {
                        token: w.tokens[0],
                        position: length,
                        kv,
                        state: Arc::clone(&w.states[0]),
                        hidden: None,
                        head: DraftHead::Whole,
                    };
                    let first = g.executor.draft(std::slice::from_ref(&draft)).expect("a step").remove(0);
                    assert_eq!(first.logits.as_deref().map(bits).as_ref(), Some(&w.mtp[0]), "{what}");
                    let second = DraftColumn {
                        token: w.tokens[1],
                        position: length + 1,
                        hidden: Some(first.hidden),
                        head: DraftHead::None,
                        ..draft
                    };
                    g.executor.draft(&[second]).expect("a step");
                    let columns: Vec<u32> = (0..=drafts)
                        .map(|i| if i <= right { w.tokens[i] } else { (w.tokens[i] + 1) % vocabulary })
                        .collect();
                    let (planes, logits) = verify(&mut g, &w, &columns, kv);
                    for i in 0..=right {
                        assert_eq!(logits[i], w.logits[i + 1], "{what}: logits behind column {i}");
                    }
                    let held = g.executor.contents(&kv, &planes[right], length + right as u32 + 1);
                    assert!(held.expect("read") == w.held[right + 1], "{what}: what is held");
                    // The rejected columns' cells are written over as the sequence goes on.
                    g.set_kv(kv);
                    let at = length + right as u32 + 1;
                    let next = w.tokens[right + 1];
                    let (state, rows, mtp) =
                        g.run(Kind::Decode, &[next], at, Arc::clone(&planes[right]), vec![0], vec![0]);
                    assert_eq!(bits(&rows[0]), w.logits[right + 2], "{what}: the next logits");
                    assert_eq!(bits(&mtp[0]), w.mtp[right + 1], "{what}: the next MTP logits");
                    let held = g.executor.contents(&kv, &state, at + 1).expect("read");
                    assert!(held == w.held[right + 2], "{what}: what is held then");
                    g.executor.destroy_kv(kv).expect("freed");
                }
            }
        }
    }
}

#[test]
fn columns_behind_a_prompt_in_its_own_pass_are_those_of_a_pass_of_their_own() {
    for file in models() {
        let tiles = Switches { prefill_products: PrefillProducts::F16Tile, ..Switches::default() };
        // Where a prompt is multiplied otherwise than what is behind it, few of the lengths again.
        let lengths = [1u32, 3, 63, 64, 65, 130].map(|length| (length, Switches::default()));
        for (length, switches) in lengths.into_iter().chain([3, 65].map(|length| (length, tiles.clone()))) {
            let mut g = Golden::open(&file, cpu(), switches);
            let w = walk(&mut g, length, 8);
            let kv = g.executor.new_kv(256).expect("a cache");
            let end = g.executor.take_state().expect("a state");
            let planes: Vec<Arc<State>> = (0..8).map(|_| g.executor.take_state().expect("a state")).collect();
            let before = Segment {
                states: vec![(length - 1, Arc::clone(&end))],
                logits: vec![length - 1],
                mtp: true,
                ..Segment::new(Kind::Prefill, prompt(&g, length), 0, kv, g.zero())
            };
            let behind = Segment {
                states: (0..).zip(planes.iter().map(Arc::clone)).collect(),
                logits: (0..8).collect(),
                mtp: true,
                ..Segment::new(Kind::Decode, w.tokens[..8].to_vec(), length, kv, end)
            };
            let out = g.executor.run(&Pass { segments: vec![before, behind] }).expect("pass");
            for (i, row) in out.logits.iter().enumerate() {
                assert_eq!(bits(row), w.logits[i], "{} at {length}: row {i}", file.display());
            }
            for (i, plane) in planes.iter().enumerate() {
                let held = g.executor.contents(&kv, plane, length + i as u32 + 1).expect("read");
                assert!(held == w.held[i + 1], "{} at {length}: plane {i}", file.display());
            }
            g.executor.destroy_kv(kv).expect("freed");
        }
    }
}

#[test]
fn mtp_logits_after_a_restore_equal_those_without() {
    for file in models() {
        let mut g = Golden::open(&file, cpu(), Switches::default());
        let tokens = prompt(&g, 150);
        // On the grid, so that both runs have the same chunks; off it see the passes' tests.
        for restored in [64u32, 128] {
            let saved = g.executor.take_state().expect("a state");
            let end = g.executor.take_state().expect("a state");
            let (kv, zero) = (g.kv(), g.zero());
            let wanted: Vec<u32> = (restored..150).collect();
            let whole = Segment {
                states: vec![(restored - 1, Arc::clone(&saved)), (149, end)],
                mtp: true,
                mtp_logits: wanted.clone(),
                ..Segment::new(Kind::Prefill, tokens.clone(), 0, kv, zero)
            };
            let whole = g.executor.run(&Pass { segments: vec![whole] }).expect("pass").mtp_logits;
            // Another prompt takes the cells behind the restored position, entry R - 1 too.
            let mut other = tokens.clone();
            other[restored as usize..].iter_mut().for_each(|t| *t = (*t + 1) % 40);
            g.run(Kind::Prefill, &other, 0, g.zero(), vec![], vec![]);
            let columns = wanted.iter().map(|c| c - restored).collect();
            let rest = &tokens[restored as usize..];
            let (_, _, again) = g.run(Kind::Prefill, rest, restored, saved, vec![], columns);
            for (i, (a, b)) in whole.iter().zip(&again).enumerate() {
                assert_eq!(bits(a), bits(b), "{}: entry {}", file.display(), restored + i as u32 - 1);
            }
            assert_eq!(whole.len(), again.len());
        }
    }
}

#[test]
fn restricted_rows_are_rows_of_the_whole() {
    for file in models() {
        let mut g = Golden::open(&file, cpu(), Switches::default());
        let tokens = prompt(&g, 20);
        let (kv, zero) = (g.kv(), g.zero());
        let rows: Arc<[u32]> = [3, 4, 11, 40].into();
        let segment = Segment {
            logits: vec![18, 19],
            restricted: vec![(19, Arc::clone(&rows)), (3, [7].into())],
            ..Segment::new(Kind::Prefill, tokens.clone(), 0, kv, Arc::clone(&zero))
        };
        let out = g.executor.run(&Pass { segments: vec![segment] }).expect("pass");
        let third = Segment { logits: vec![3], ..Segment::new(Kind::Prefill, tokens, 0, kv, zero) };
        let third = g.executor.run(&Pass { segments: vec![third] }).expect("pass").logits.remove(0);
        let want: Vec<f32> = rows.iter().map(|r| out.logits[1][*r as usize]).collect();
        assert_eq!(bits(&out.restricted[0]), bits(&want));
        assert_eq!(bits(&out.restricted[1]), bits(&third[7..8]));
    }
}
