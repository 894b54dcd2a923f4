//! Time to first token of a prompt of modules, by where their KV comes from, beside a full prefill of the same prompt (Prompt Cache, section 5.2).

use ragstone_env::Stopwatch;
use serde::Serialize;
use serde_json::{Value, json};

use super::clients::{Clients, streamed};
use crate::bench::{Machine, Spread};
use crate::error::{Error, Result};

/// What to measure. Lengths are in tokens.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rounds; each measures every way once.
    pub runs: usize,
    /// Of all modules of a prompt together.
    pub lengths: Vec<usize>,
    /// Modules of a prompt.
    pub modules: usize,
    /// Of the question behind them.
    pub question: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub results: Vec<Measured>,
}

/// What prompts of one length took.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Of the modules.
    pub tokens: usize,
    /// By way: `full`, then from the device, host memory and disk.
    pub ways: Vec<Way>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Way {
    pub from: &'static str,
    /// From the request to the answer of one token, through HTTP.
    pub ttft_ms: Spread,
    /// How many times sooner than the full prefill's it comes, within a round.
    pub speedup: Spread,
}

/// Where modules come from, and the tiers that are emptied before.
const WAYS: [(&str, &[&str]); 4] =
    [("full", &[]), ("device", &[]), ("host", &["device"]), ("disk", &["device", "host"])];

/// Measures all ways in turn, so that what the machine does otherwise meets each.
pub async fn measure(clients: Clients, options: Options) -> Result<Report> {
    let mut results = Vec::new();
    for tokens in &options.lengths {
        let name = format!("bench-{tokens}");
        let (schema, imports) = schema(&clients, &name, *tokens, options.modules);
        clients.post(&["v1", "pml", "schemas"], &json!({ "schema": schema })).await?;
        let ask = async |reuse: &str| {
            let question = clients.text(options.question);
            let prompt = format!("<prompt schema=\"{name}\">{imports}{question}</prompt>");
            let request = json!({ "prompt": prompt, "ragstone": { "pml": { "name": name }, "reuse": reuse } });
            let clock = Stopwatch::start();
            let mut request = streamed(request, 1);
            request["stream"] = json!(false);
            request["stream_options"] = Value::Null;
            let answer = clients.post(&["v1", "completions"], &request).await?;
            Ok::<_, Error>((clock.elapsed_ms(), answer["ragstone"]["report"].clone()))
        };
        // Computes the modules, keeps them, and leaves them on the device.
        ask("auto").await?;
        clients.settle().await?;
        let mut ms: [Vec<f64>; WAYS.len()] = Default::default();
        for _ in 0..options.runs {
            for ((from, emptied), ms) in WAYS.iter().zip(&mut ms) {
                for tier in *emptied {
                    clients.post(&["v1", "cache", "evict"], &json!({ "all": true, "tier": tier })).await?;
                }
                let (first_ms, report) = ask(if *from == "full" { "off" } else { "auto" }).await?;
                check(&report, from)?;
                ms.push(first_ms);
                clients.settle().await?;
            }
        }
        let full = ms[0].clone();
        let ways = WAYS.iter().zip(ms).map(|((from, _), ms)| {
            let speedup = Spread::of(full.iter().zip(&ms).map(|(full, ms)| full / ms));
            Way { from, ttft_ms: Spread::of(ms), speedup }
        });
        results.push(Measured { tokens: *tokens, ways: ways.collect() });
    }
    Ok(Report { machine: Machine::here(), results })
}

/// Whether all modules came from there.
fn check(report: &Value, from: &str) -> Result<()> {
    let modules = report["segments"].as_array().into_iter().flatten().filter(|segment| segment["kind"] == "module");
    let elsewhere = modules.map(|module| module["tier"].as_str().unwrap_or("full")).find(|tier| *tier != from);
    elsewhere.map_or(Ok(()), |tier| Err(Error::internal(format!("a module came from {tier} instead of {from}"))))
}

/// A schema of `modules` modules of random words, a token each, and the imports of all of them.
fn schema(clients: &Clients, name: &str, tokens: usize, modules: usize) -> (String, String) {
    let (mut schema, mut imports) = (format!("<schema name=\"{name}\">"), String::new());
    for module in 0..modules {
        let own = tokens * (module + 1) / modules - tokens * module / modules;
        schema += &format!("<module name=\"m{module}\">{}</module>", clients.text(own));
        imports += &format!("<m{module}/>");
    }
    (schema + "</schema>", imports)
}
