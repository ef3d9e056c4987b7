//! The loop of a serving engine on a cache: first-come admission under a watermark, prefill in chunks
//! beside decode, growth block by block, preemption (newest first, recomputed later) when blocks run
//! out, completion. The "model" is a toy of one layer: the next token is where its output is largest.
//!
//! It prints what `examples/engine_loop.cpp` prints.

use kvarena::{
    Cache, CacheOptions, Demand, Device, Error, HostOptions, Result, Sequence, SequenceOptions,
    Step, Urgency,
};
use std::collections::VecDeque;
use std::process::ExitCode;

const HEADS: usize = 2;
const DIM: usize = 16;
const ROW: usize = HEADS * DIM;
const BLOCKS: i64 = 24;
const BLOCK_SIZE: usize = 16;
const TOKEN_BUDGET: usize = 64;

struct Waiting {
    tokens: Vec<usize>, // the prompt, then what was generated
    goal: usize,        // tokens when it is complete
}

struct Running {
    request: Waiting,
    cached: usize, // tokens whose K and V are in the cache
    sequence: Sequence,
}

#[derive(Default)]
struct Engine {
    waiting: VecDeque<Waiting>,
    running: Vec<Running>, // oldest first
    steps: usize,
    completed: usize,
    computed: i64,
    preemptions: usize,
    recomputed: usize,
}

impl Engine {
    /// Takes waiting requests while their tokens fit above the watermark.
    fn admit(&mut self, cache: &mut Cache) -> Result<()> {
        let mut blocks = 0;
        while let Some(first) = self.waiting.front() {
            blocks += first.tokens.len() / BLOCK_SIZE + 1;
            if !cache.can_allocate(blocks as i64, Urgency::Admission)? {
                break;
            }
            let sequence = cache.create_sequence(&SequenceOptions::default())?;
            let request = self.waiting.pop_front().expect("the first is there");
            self.running.push(Running { request, cached: 0, sequence });
        }
        Ok(())
    }

    /// The newest request gives its blocks back and is computed again later.
    fn preempt(&mut self, cache: &mut Cache) -> Result<()> {
        let victim = self.running.pop().expect("somebody runs");
        self.preemptions += 1;
        self.recomputed += victim.cached;
        self.waiting.push_front(victim.request);
        cache.destroy(&[victim.sequence], None)
    }

    /// A token each for those that decode, chunks of the prompt for the others, within the budget.
    fn demands(&self) -> Vec<Demand> {
        let mut budget = TOKEN_BUDGET;
        let demand_of = |r: &Running| {
            let chunk = (r.request.tokens.len() - r.cached).min(budget);
            budget -= chunk;
            Demand::new(r.sequence, chunk as i32)
        };
        self.running.iter().map(demand_of).collect()
    }

    /// The model. K, V and Q are a function of the token.
    fn compute(&self, step: &mut Step<'_>, rows: &[Demand]) -> Result<Vec<f32>> {
        let mut embedded = Vec::new();
        for (r, row) in self.running.iter().zip(rows) {
            for token in &r.request.tokens[r.cached..r.cached + row.num_tokens() as usize] {
                let element = |e| (((token + 1) * e) as f32 * 0.1).sin();
                embedded.extend((1..=ROW).map(element));
            }
        }
        let mut out = vec![0.0; embedded.len()];
        step.write(0, &embedded, &embedded)?;
        step.attend(0, &embedded, &mut out)?;
        Ok(out)
    }

    /// Takes the next token of each request whose tokens are all cached; ends those that are complete.
    fn collect(&mut self, cache: &mut Cache, rows: &[Demand], out: &[f32]) -> Result<()> {
        let mut end = 0;
        for (r, row) in self.running.iter_mut().zip(rows) {
            r.cached += row.num_tokens() as usize;
            end += row.num_tokens() as usize * ROW;
            let tokens = &mut r.request.tokens;
            if r.cached < tokens.len() {
                continue;
            }
            tokens.push(first_largest(&out[end - ROW..end]));
            if tokens.len() == r.request.goal {
                cache.destroy(&[r.sequence], None)?;
                self.completed += 1;
            }
        }
        self.running.retain(|r| r.request.tokens.len() < r.request.goal);
        Ok(())
    }

    fn serve(&mut self, cache: &mut Cache) -> Result<()> {
        while !self.waiting.is_empty() || !self.running.is_empty() {
            let mut step = cache.begin_step()?;
            self.admit(&mut step)?;
            let mut rows = self.demands();
            let mut batch = step.append(&rows);
            while matches!(batch, Err(Error::Exhausted(_))) && self.running.len() > 1 {
                self.preempt(&mut step)?;
                rows = self.demands();
                batch = step.append(&rows);
            }
            self.computed += batch?.num_tokens;
            let out = self.compute(&mut step, &rows)?;
            step.end()?;
            self.collect(cache, &rows, &out)?;
            self.steps += 1;
        }
        cache.verify_accounts()
    }
}

fn first_largest(row: &[f32]) -> usize {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&x| x == largest).expect("a number is the largest")
}

fn main() -> ExitCode {
    let device = match Device::open_host(&HostOptions::default()) {
        Ok(device) => device,
        Err(error) => return fail(&error.to_string()),
    };
    let options = CacheOptions {
        num_layers: 1,
        num_kv_heads: HEADS as i32,
        head_dim_k: DIM as i32,
        num_blocks: BLOCKS,
        num_q_heads: HEADS as i32,
        max_step_tokens: TOKEN_BUDGET as i64,
        watermark_blocks: 2,
        ..Default::default()
    };
    let mut cache = match Cache::create(&device, &options) {
        Ok(cache) => cache,
        Err(error) => return fail(&device.describe(&error)),
    };
    let mut engine = Engine::default();
    for i in 0..20 {
        let prompt = 20 + i * 37 % 90;
        engine.waiting.push_back(Waiting { tokens: vec![i; prompt], goal: prompt + 10 + i * 3 });
    }
    let served = engine.serve(&mut cache).and_then(|()| cache.stats());
    let stats = match served {
        Ok(stats) => stats,
        Err(error) => return fail(&cache.describe(&error)),
    };
    println!(
        "{} requests completed in {} steps; {} tokens computed",
        engine.completed, engine.steps, engine.computed
    );
    println!(
        "{} preemptions had {} tokens computed a second time",
        engine.preemptions, engine.recomputed
    );
    println!(
        "at most {} of {BLOCKS} blocks in use; {} free at the end",
        stats.peak_allocated, stats.free_blocks
    );
    ExitCode::from(u8::from(stats.free_blocks != BLOCKS))
}

fn fail(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::FAILURE
}
