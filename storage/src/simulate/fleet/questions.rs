//! A question's way: routed, looked up and planned by its node, loaded, computed, answered; or asked again elsewhere, or refused.

use super::engine::Done;
use super::kit::{Computes, Follows, Kit, Shares};
use super::load::versioned;
use super::outcome::{Answered, Fate};
use super::route::{at_random, by_hash, by_kv, in_turn};
use super::run::{Beside, Event, Loading, MOST_MISSED, Run, Transfer};
use super::{Calendar, Routing};
use crate::Result;
use crate::key::KvKey;
use crate::prompt::plan::{LoadPlan, Source};
use crate::simulate::Request;
use crate::simulate::workload::key_of;
use crate::tier::Tier;

/// Times that a question is asked again of another node: `retries` of `ops/deploy/haproxy.cfg`.
const RETRIES: u32 = 2;
/// What waits to be computed beside, at most: what is beyond is computed when its passages are asked for again.
const MOST_BESIDE: usize = 4096;

impl<K: Kit> Run<'_, K> {
    /// A question comes, or comes again.
    pub fn ask(&mut self, question: usize) -> Result<()> {
        if self.asking[question].attempt == 0 {
            self.note_window(question);
        }
        let mut except = None;
        loop {
            let Some(node) = self.route(question, except)? else {
                self.end(question, Fate::Refused);
                return Ok(());
            };
            if self.nodes[node].questions.len() < self.fleet.most_answers + self.fleet.most_waiting {
                return self.begin(question, node);
            }
            if self.asking[question].attempt >= RETRIES {
                self.end(question, Fate::Refused);
                return Ok(());
            }
            self.asking[question].attempt += 1;
            self.retried += 1;
            except = Some(node);
        }
    }

    fn route(&mut self, question: usize, except: Option<usize>) -> Result<Option<usize>> {
        let blind_us = MOST_MISSED * self.interval_us();
        for (view, node) in self.views.iter_mut().zip(&self.nodes) {
            view.is_ready = node.is_up && self.now_us - node.looked_us <= blind_us;
            view.questions = node.questions.len();
        }
        let group = self.asked.questions[question].group;
        let chosen = match self.fleet.routing {
            Routing::Hash => by_hash(&self.ring, &self.views, group, except),
            Routing::Random => at_random(&mut self.random, &self.views, except),
            Routing::RoundRobin => in_turn(self.last, &self.views),
            Routing::KvAware => {
                // The router has the prompt rendered first, so that it knows the passages as they are now.
                let (request, _) = self.request(question, self.now_us)?;
                let path: Vec<(KvKey, u32)> =
                    request.path.iter().map(|node| (key_of(*node), self.workload.tokens(*node))).collect();
                let prompt_tokens = u64::from(self.workload.prompt_tokens(&request));
                let matched = self.index.as_ref().map(|index| index.matched(&path, self.nodes.len()));
                let of = |node: usize| matched.as_ref().map_or(0, |matched| matched[node]);
                let chosen = by_kv(&self.views, prompt_tokens, &of, except);
                self.asking[question].waiting_tokens = prompt_tokens - chosen.map_or(0, of).min(prompt_tokens);
                chosen
            }
        };
        self.last = chosen.unwrap_or(self.last);
        Ok(chosen)
    }

    /// The prompt as who saw the log at that time has it, and its passages with their versions.
    fn request(&mut self, question: usize, view_us: f64) -> Result<(Request, Vec<(u64, u64)>)> {
        let asked = &self.asked.questions[question];
        let labels: Vec<(u64, u64)> =
            asked.segments.iter().map(|(label, _)| (*label, self.tables.version(*label, view_us))).collect();
        let segments: Vec<(u64, u32)> = labels
            .iter()
            .zip(&asked.segments)
            .map(|((label, version), (_, tokens))| (versioned(*label, *version), *tokens))
            .collect();
        let known = self.workload.nodes.len();
        self.workload.push(&segments, asked.tokens)?;
        for at in known..self.workload.nodes.len() {
            let node = self.workload.nodes[at];
            // Fewer than 2^32: `push` sees to it.
            self.by_label.entry(node.label).or_default().push(at as u32);
            self.children.push(Vec::new());
            if let Some(parent) = node.parent {
                self.children[parent as usize].push(at as u32);
            }
        }
        let request = self.workload.requests.pop().unwrap_or(Request { path: Vec::new(), question_tokens: 0 });
        Ok((request, labels))
    }

    /// The node looks up and plans, and begins to load.
    fn begin(&mut self, question: usize, node: usize) -> Result<()> {
        let (request, labels) = self.request(question, self.nodes[node].view_us)?;
        self.note_staleness(&labels);
        let prompt_tokens = u64::from(self.workload.prompt_tokens(&request));
        let begun = self.nodes[node].service.begin(&self.workload, &request)?;
        let prediction = begun.plan.prediction.unwrap_or_default();
        let answered = Answered::of(&begun.plan);
        let bytes = bucket_bytes(&begun.plan);
        let attempt = self.asking[question].attempt;
        let asking = &mut self.asking[question];
        (asking.node, asking.labels, asking.prompt_tokens, asking.answered) = (node, labels, prompt_tokens, answered);
        if self.fleet.routing != Routing::KvAware {
            asking.waiting_tokens = u64::from(begun.plan.computed_tokens);
        }
        let waiting_tokens = asking.waiting_tokens;
        asking.begun = Some(begun);
        let at = &mut self.nodes[node];
        at.questions.push(question);
        self.views[node].waiting_tokens += waiting_tokens;
        self.views[node].active_tokens += prompt_tokens;
        let wait_us = prediction.wait_ms * 1e3;
        if bytes == 0 {
            self.calendar.note(self.now_us + wait_us, Event::Ready(question, attempt));
        } else {
            at.gets += answered.bucket_entries;
            let learned = at.service.costs.read(Tier::Object);
            let median_us = self.fleet.costs.reads[2].0.request_us;
            let latency_us = median_us * (self.fleet.bucket.tail * self.random.normal()).exp();
            let id = self.link.begin(self.now_us, bytes as f64, Transfer::Load(question, attempt));
            self.asking[question].load = Some(Loading {
                id,
                began_us: self.now_us,
                bytes,
                predicted_us: learned.us(1.0, bytes as f64),
                latency_us,
                wait_us,
            });
            self.note_link();
        }
        self.pass_events(node);
        Ok(())
    }

    /// What is served of a passage that was replaced before, and since when it was.
    fn note_staleness(&mut self, labels: &[(u64, u64)]) {
        let c = &self.fleet.corpus;
        let stated_us = (MOST_MISSED * c.interval_ms + self.fleet.bucket.list_ms) * 1e3;
        let since = labels.iter().filter_map(|(label, version)| self.tables.replaced_us(*label, *version));
        if let Some(since_us) = since.min_by(f64::total_cmp) {
            let stale_us = self.now_us - since_us;
            self.most_stale_us = self.most_stale_us.max(stale_us);
            self.stale += u64::from(stale_us > stated_us);
        }
    }

    /// Transfers have ended.
    pub fn transferred(&mut self, stamp: u64) {
        if stamp != self.link_stamp {
            return;
        }
        for transfer in self.link.ended(self.now_us) {
            match transfer {
                Transfer::Load(question, attempt) => self.loaded(question, attempt),
                Transfer::Upload(key, bytes, question) => {
                    self.puts += 1;
                    if !self.is_replaced(question, self.now_us) {
                        self.objects.insert(key, bytes);
                    }
                }
            }
        }
        self.note_link();
    }

    fn loaded(&mut self, question: usize, attempt: u32) {
        let asking = &mut self.asking[question];
        let Some(load) = asking.load.take().filter(|_| asking.attempt == attempt) else { return };
        let took_us = self.now_us - load.began_us + load.latency_us;
        let node = &mut self.nodes[asking.node];
        // What the node learns of the bucket, as it does of a real one.
        node.reads.observe(Tier::Object, load.bytes, 1, std::time::Duration::from_secs_f64(took_us / 1e6));
        if node.reads.is_telling() {
            node.service.costs.reads[2] = (node.reads.cost(Tier::Object), true);
        }
        let wait_us = (load.wait_us + took_us - load.predicted_us).max(0.0);
        let ready_us = (load.began_us + wait_us).max(self.now_us);
        self.calendar.note(ready_us, Event::Ready(question, attempt));
    }

    /// What it waits for has come: its prefill waits for the engine.
    pub fn ready(&mut self, question: usize, attempt: u32) {
        let asking = &self.asking[question];
        if asking.fate.is_some() || asking.attempt != attempt {
            return;
        }
        let Some(begun) = &asking.begun else { return };
        let compute_us = begun.plan.prediction.unwrap_or_default().compute_ms * 1e3;
        let node = asking.node;
        let answer_tokens = self.asked.questions[question].answer_tokens;
        self.nodes[node].engine.prefill(self.now_us, compute_us, question, answer_tokens);
        self.note_engine(node);
    }

    /// Something has ended at a node's engine.
    pub fn computed(&mut self, node: usize, stamp: u64) {
        if self.nodes[node].stamp != stamp {
            return;
        }
        for done in self.nodes[node].engine.done(self.now_us) {
            match done {
                Done::Prefill(question) => self.prefilled(node, question),
                Done::Answer(question) => {
                    self.leave(node, question);
                    self.end(question, Fate::Answered);
                }
                Done::Beside((fresh, question)) => {
                    if !self.is_replaced(question, self.nodes[node].view_us) {
                        self.nodes[node].service.compute_beside(fresh);
                        self.upload(node, question);
                    }
                }
            }
        }
        self.pass_events(node);
        self.note_engine(node);
    }

    /// The first token.
    fn prefilled(&mut self, node: usize, question: usize) {
        let is_replaced = self.is_replaced(question, self.nodes[node].view_us);
        let asking = &mut self.asking[question];
        asking.is_answering = true;
        asking.answered.ttft_us = self.now_us - self.asked.questions[question].at_us;
        let waiting_tokens = std::mem::take(&mut asking.waiting_tokens);
        self.views[node].waiting_tokens -= waiting_tokens;
        let Some(begun) = asking.begun.take() else { return };
        let at = &mut self.nodes[node];
        // KV of a text that was replaced meanwhile is not stored: the store's epochs and tombstones.
        if is_replaced {
            at.service.break_off(begun);
            return;
        }
        let (_, beside) = at.service.end(begun);
        for fresh in beside {
            let us = at.service.beside_us(fresh);
            if us > 0.0 && at.engine.beside() < MOST_BESIDE {
                let what: Beside = (fresh, question);
                at.engine.compute_beside(self.now_us, us, what);
            } else if us > 0.0 {
                self.dropped_beside += 1;
            }
        }
        self.upload(node, question);
    }

    /// What a node has to upload begins.
    fn upload(&mut self, node: usize, question: usize) {
        let Some(uploads) = &mut self.nodes[node].service.tiers.uploads else { return };
        let uploads = std::mem::take(uploads);
        if uploads.is_empty() || self.is_down {
            return;
        }
        for (key, bytes) in uploads {
            self.link.begin(self.now_us, bytes as f64, Transfer::Upload(key, bytes, question));
        }
        self.note_link();
    }

    /// Whether a passage of a question was replaced for who saw the log at that time.
    fn is_replaced(&self, question: usize, view_us: f64) -> bool {
        let labels = &self.asking[question].labels;
        labels.iter().any(|(label, version)| self.tables.version(*label, view_us) > *version)
    }

    /// A question leaves its node.
    pub fn leave(&mut self, node: usize, question: usize) {
        self.nodes[node].questions.retain(|other| *other != question);
        let asking = &mut self.asking[question];
        let (waiting, prompt) = (std::mem::take(&mut asking.waiting_tokens), asking.prompt_tokens);
        self.views[node].waiting_tokens -= waiting;
        self.views[node].active_tokens -= prompt;
        if let Some(load) = asking.load.take() {
            self.link.break_off(self.now_us, load.id);
        }
    }

    pub fn end(&mut self, question: usize, fate: Fate) {
        debug_assert!(self.asking[question].fate.is_none(), "a question ends once");
        self.asking[question].fate = Some(fate);
        self.asking[question].answered.end_us = self.now_us;
        self.open -= 1;
    }
}

fn bucket_bytes(plan: &LoadPlan) -> u64 {
    let from_bucket = |source: &Source| source.tier() == Some(Tier::Object);
    plan.segments.iter().filter(|at| from_bucket(&at.source)).map(|at| at.bytes).sum()
}
