//! What nodes share and what becomes of them: changes of the corpus, the log of what was replaced, failures and returns.

use super::corpus::{Committed, Writer};
use super::kit::{Calendar, Computes, Follows, Kit};
use super::outcome::Fate;
use super::run::{Event, Run};
use crate::Result;
use crate::key::KvKey;
use crate::simulate::workload::key_of;

impl<K: Kit> Run<'_, K> {
    /// A node lists the log.
    pub fn look(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life {
            return;
        }
        self.lists += 2;
        let (list_us, interval_us) = (self.fleet.bucket.list_ms * 1e3, self.interval_us());
        if self.is_down {
            self.calendar.note(self.now_us + interval_us, Event::Look(node, life));
        } else {
            self.calendar.note(self.now_us + list_us, Event::Looked(node, life, self.now_us));
        }
    }

    /// It applies what is new to its tiers, and is up to date then.
    pub fn looked(&mut self, node: usize, life: u32, began_us: f64) {
        if self.nodes[node].life != life {
            return;
        }
        let mut cursor = self.nodes[node].cursor;
        while let Some(told) = self.tables.log.get(cursor).filter(|told| told.at_us <= began_us) {
            for key in self.keys_of(told.label) {
                self.nodes[node].service.tiers.forget(&key);
            }
            cursor += 1;
        }
        let at = &mut self.nodes[node];
        at.cursor = cursor;
        at.view_us = began_us;
        at.looked_us = self.now_us;
        self.pass_events(node);
        let interval_us = self.interval_us();
        self.calendar.note(self.now_us + interval_us, Event::Look(node, life));
    }

    /// Entries of a text, wherever it stands, and of all that was computed after it.
    pub fn keys_of(&self, label: u64) -> Vec<KvKey> {
        let mut keys = Vec::new();
        let mut left: Vec<u32> = self.by_label.get(&label).cloned().unwrap_or_default();
        if let Some(node) = left.first() {
            let root: &[u32] = if self.workload.has_system_prompt { &[0] } else { &[] };
            keys.push(self.workload.standalone_key(root, *node, true));
        }
        while let Some(node) = left.pop() {
            keys.push(key_of(node));
            left.extend(&self.children[node as usize]);
        }
        keys
    }

    /// Somebody sends another text of a passage to some node.
    pub fn change(&mut self, change: usize) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].is_up).collect();
        if up.is_empty() {
            self.tables.lost += 1;
            self.open -= 1;
            return;
        }
        let node = up[self.random.below(up.len())];
        let writer = (node, self.asked.changes[change].group);
        let interval_us = self.interval_us();
        if let Some(at_us) = self.tables.add(writer, change, self.now_us, interval_us) {
            self.calendar.note(at_us, Event::Commit(writer, self.nodes[node].life));
        }
    }

    pub fn commit(&mut self, writer: Writer, life: u32) {
        if self.nodes[writer.0].life != life {
            return;
        }
        let interval_us = self.interval_us();
        if self.is_down {
            self.calendar.note(self.now_us + interval_us, Event::Commit(writer, life));
            return;
        }
        self.tables.begin(writer, self.now_us);
        let takes_us = self.fleet.corpus.commit_ms * 1e3 * (0.75 + 0.5 * self.random.unit());
        self.calendar.note(self.now_us + takes_us, Event::Put(writer, life));
    }

    pub fn put(&mut self, writer: Writer, life: u32) {
        if self.nodes[writer.0].life != life {
            return;
        }
        if self.is_down {
            self.commit(writer, life);
            return;
        }
        let was_changed = self.tables.changed.contains(&writer.1);
        match self.tables.put(writer) {
            Committed::Nobody => {}
            Committed::Again => self.commit(writer, life),
            Committed::Done(changes) => {
                self.puts += 2;
                // Nobody acknowledges what the log does not have yet.
                let told_us = self.now_us + self.fleet.bucket.put_ms * 1e3;
                for change in changes {
                    self.calendar.note(told_us, Event::Tell(change));
                }
                if !was_changed {
                    let due_us = self.now_us + self.fleet.corpus.optimise_every_s * 1e6;
                    self.calendar.note(due_us, Event::Optimise(writer.1));
                }
                let interval_us = self.interval_us();
                if let Some(at_us) = self.tables.next(writer, self.now_us, interval_us) {
                    self.calendar.note(at_us, Event::Commit(writer, life));
                }
            }
        }
    }

    /// The log has it: from now on nobody begins to serve the earlier text who lists it.
    pub fn tell(&mut self, change: usize) {
        let asked = self.asked;
        self.puts += 1;
        self.tables.tell(change, &asked.changes[change], self.now_us);
        if let Some(told) = self.tables.log.last().copied() {
            for key in self.keys_of(told.label) {
                self.objects.remove(&key);
            }
        }
        self.open -= 1;
    }

    /// One node has the lease, and rewrites the table.
    pub fn optimise(&mut self, group: u64) {
        self.tables.changed.remove(&group);
        let ends_us = self.now_us + self.fleet.corpus.optimise_ms * 1e3;
        self.calendar.note(ends_us, Event::Optimised(group, self.tables.version_of_table(group)));
    }

    pub fn optimised(&mut self, group: u64, began_at: u64) {
        let was_changed = self.tables.changed.contains(&group);
        self.tables.optimise(group, began_at);
        // It is tried again, unless a commit meanwhile has seen to that.
        if self.tables.changed.contains(&group) && !was_changed {
            let due_us = self.now_us + self.fleet.corpus.optimise_every_s * 1e6;
            self.calendar.note(due_us, Event::Optimise(group));
        }
    }

    /// A node is gone: its memory, what it computed, and who waited for it. Whoever has no token yet is asked again elsewhere.
    pub fn fail(&mut self, node: usize) -> Result<()> {
        if !self.nodes[node].is_up {
            return Ok(());
        }
        let questions = self.nodes[node].questions.clone();
        for question in questions {
            self.leave(node, question);
            if let Some(begun) = self.asking[question].begun.take() {
                self.nodes[node].service.break_off(begun);
            }
            if self.asking[question].is_answering {
                self.end(question, Fate::BrokenOff);
            } else if self.asking[question].attempt >= 2 {
                self.end(question, Fate::Refused);
            } else {
                self.asking[question].attempt += 1;
                self.retried += 1;
                self.calendar.note(self.now_us, Event::Ask(question));
            }
        }
        self.note_link();
        let lost = self.tables.lost;
        self.tables.lose(node);
        self.open -= self.tables.lost - lost;
        let at = &mut self.nodes[node];
        at.is_up = false;
        at.life += 1;
        at.stamp += 1;
        at.engine.clear(self.now_us);
        at.service.tiers.restarted(self.fleet.tiers, self.fleet.policy, self.fleet.faults.keeps_disk);
        at.reads = crate::cost::ReadMeter::default();
        at.service.costs.reads = self.fleet.costs.reads.map(|(cost, _)| (cost, true));
        if let Some(index) = &mut self.index {
            index.forget(node);
        }
        self.calendar.note(self.now_us + self.fleet.faults.restart_s * 1e6, Event::Back(node));
        Ok(())
    }

    /// It is back, or joins: it takes questions once it has looked at the log.
    pub fn back(&mut self, node: usize) {
        let at = &mut self.nodes[node];
        at.is_up = true;
        at.looked_us = f64::NEG_INFINITY;
        self.calendar.note(self.now_us, Event::Look(node, at.life));
    }
}
