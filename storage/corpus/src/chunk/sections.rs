//! Cuts a text with headings, tables or code: by sections, then paragraphs, rows and blank lines, then sentences.
//!
//! A section with all below it is one passage where it fits; small neighbours of one parent share a passage. What stands apart from
//! its headings is told them: a passage begins with the headings above it, `Install > Linux`, and one that begins within a table
//! with the table's header.

use std::borrow::Cow;
use std::ops::Range;

use super::{Border, Budget, Cut, break_down, pack, tail, weight};
use ragstone_documents::{Element, ElementKind};

/// Headings above a passage, and a table's header, take at most this part of the budget each; else the outer ones are left out.
const CONTEXT_PART: usize = 4;

/// The passages of `text`, in order, each of at most `budget` tokens by `count`.
///
/// `elements` must lie in order and at borders of characters.
pub(super) fn split<'a>(
    text: &'a str,
    elements: &[Element],
    budget: Budget,
    count: &dyn Fn(&str) -> usize,
) -> Vec<Cut<'a>> {
    let (headings, sections) = sections(text, elements, count);
    let mut cutter = Cutter { text, headings, sections, budget, count, passages: Vec::new() };
    cutter.group(0..cutter.sections.len());
    cutter.passages
}

/// A heading.
struct Heading {
    /// In bytes.
    range: Range<usize>,
    level: u8,
    /// The one that it stands under, by its place.
    above: Option<usize>,
}

/// A heading and what stands under it, up to the next heading. One that nothing stands under before the first heading below it is of one
/// section with that.
#[derive(Default)]
struct Section {
    /// Of its first heading; 0: it has none, and stands before all.
    level: u8,
    /// With the headings that are its own, in bytes; empty where it has none.
    headings: Range<usize>,
    /// The last of these, and the one that the first of them stands under.
    own: Option<usize>,
    above: Option<usize>,
    body: Vec<(ElementKind, Range<usize>)>,
    /// With its headings.
    tokens: usize,
}

impl Section {
    fn range(&self) -> Range<usize> {
        self.headings.start..self.body.last().map_or(self.headings.end, |(_, range)| range.end)
    }
}

fn sections(text: &str, elements: &[Element], count: &dyn Fn(&str) -> usize) -> (Vec<Heading>, Vec<Section>) {
    let ends = elements.iter().skip(1).map(|element| element.at).chain([text.len()]);
    let lead = elements.first().map_or(text.len(), |element| element.at);
    let (mut headings, mut sections): (Vec<Heading>, Vec<Section>) = (Vec::new(), Vec::new());
    if lead > 0 || !matches!(elements.first(), Some(Element { kind: ElementKind::Heading(_), .. })) {
        // No text stands before what begins at once: of code alone the first line keeps its indentation.
        let body = if lead > 0 { vec![(ElementKind::Text, 0..lead)] } else { Vec::new() };
        sections.push(Section { body, ..Section::default() });
    }
    // The one that the next heading may stand under.
    let mut last: Option<usize> = None;
    for (element, end) in elements.iter().zip(ends) {
        let range = element.at..end;
        let ElementKind::Heading(level) = element.kind else {
            if let Some(section) = sections.last_mut().filter(|_| !text[range.clone()].trim().is_empty()) {
                section.body.push((element.kind, range));
            }
            continue;
        };
        let (level, own, mut above) = (level.max(1), Some(headings.len()), last);
        while let Some(at) = above.filter(|at| headings[*at].level >= level) {
            above = headings[at].above;
        }
        headings.push(Heading { range: range.clone(), level, above });
        last = own;
        match sections.last_mut() {
            Some(bare) if bare.body.is_empty() && bare.own.is_some() && bare.own == above => {
                (bare.headings.end, bare.own) = (range.end, own);
            }
            _ => sections.push(Section { level, headings: range, own, above, ..Section::default() }),
        }
    }
    for section in &mut sections {
        let body = section.body.iter().map(|(_, range)| weight(&text[range.clone()], count)).sum::<usize>();
        section.tokens = body + weight(&text[section.headings.clone()], count);
    }
    (headings, sections)
}

/// The smallest piece of a section that is moved as a whole.
struct Atom {
    range: Range<usize>,
    weight: usize,
    kind: ElementKind,
    /// That of the table whose row it is, but for the first row.
    header: Option<Range<usize>>,
}

struct Cutter<'a, 'c> {
    text: &'a str,
    headings: Vec<Heading>,
    sections: Vec<Section>,
    budget: Budget,
    count: &'c dyn Fn(&str) -> usize,
    passages: Vec<Cut<'a>>,
}

impl<'a> Cutter<'a, '_> {
    /// Cuts these sections: the first and those below it, or all.
    fn group(&mut self, range: Range<usize>) {
        // Groups that wait, the next one last: sections nest as deep as whoever wrote the file wants.
        let mut waiting = vec![range];
        while let Some(range) = waiting.pop() {
            if range.is_empty() {
                continue;
            }
            if self.weight_of(&range) <= self.budget.tokens {
                self.emit_sections(range);
            } else if range.len() == 1 {
                self.cut(range.start);
            } else {
                let mut parts = self.parts(range);
                parts.reverse();
                waiting.extend(parts);
            }
        }
    }

    /// A group as smaller ones: small neighbours together, everything else by itself.
    fn parts(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut parts, mut small): (Vec<Range<usize>>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
        for item in self.items(range) {
            if self.weight_of(&item) > self.budget.tokens {
                self.together(std::mem::take(&mut small), &mut parts);
                parts.push(item);
            } else {
                small.push(item);
            }
        }
        self.together(small, &mut parts);
        parts
    }

    /// The first section's own text, and each section right below it with all that is below that.
    fn items(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut items = Vec::new();
        let mut start = range.start;
        // Whether what begins there is what the others are parts of, an item of its own.
        let below = &self.sections[range.start + 1..range.end];
        let mut is_head = below.iter().all(|section| section.level > self.sections[range.start].level);
        for at in range.start + 1..range.end {
            if is_head || self.sections[at].level <= self.sections[start].level {
                items.push(start..at);
                start = at;
                is_head = false;
            }
        }
        items.push(start..range.end);
        items
    }

    /// Neighbours that fit in one passage together.
    fn together(&self, items: Vec<Range<usize>>, parts: &mut Vec<Range<usize>>) {
        let context = items.iter().map(|item| self.context_weight(item.start, false)).max().unwrap_or(0);
        let weights: Vec<usize> = items.iter().map(|item| self.own_weight(item)).collect();
        let packed = pack(&weights, self.budget.tokens.saturating_sub(context).max(1));
        parts.extend(packed.into_iter().filter(|range| !range.is_empty()).map(|range| {
            let (first, last) = (&items[range.start], &items[range.end - 1]);
            first.start..last.end
        }));
    }

    fn own_weight(&self, range: &Range<usize>) -> usize {
        self.sections[range.clone()].iter().map(|section| section.tokens).sum()
    }

    fn weight_of(&self, range: &Range<usize>) -> usize {
        self.own_weight(range) + self.context_weight(range.start, false)
    }

    fn context_weight(&self, section: usize, with_own: bool) -> usize {
        weight(&self.context(section, with_own), self.count)
    }

    /// The headings above a section, and its own, as far as they fit.
    fn context(&self, section: usize, with_own: bool) -> String {
        let mut context = String::new();
        let Section { own, above, .. } = self.sections[section];
        let mut next = if with_own { own } else { above };
        let most = self.budget.tokens / CONTEXT_PART;
        while let Some(at) = next {
            let heading = &self.text[self.headings[at].range.clone()];
            let mut longer = heading.split_whitespace().collect::<Vec<_>>().join(" ");
            if !context.is_empty() && !longer.is_empty() {
                longer.push_str(" > ");
            }
            longer.push_str(&context);
            if weight(&longer, self.count) > most {
                break;
            }
            context = longer;
            next = self.headings[at].above;
        }
        context
    }

    fn emit_sections(&mut self, range: Range<usize>) {
        let context = self.context(range.start, false);
        let bytes = self.sections[range.start].range().start..self.sections[range.end - 1].range().end;
        let first = &self.sections[range.start];
        let is_code =
            !first.body.is_empty() && first.level == 0 && first.body.iter().all(|(kind, _)| *kind == ElementKind::Code);
        self.emit(&context, None, bytes, is_code);
    }

    fn emit(&mut self, context: &str, header: Option<Range<usize>>, bytes: Range<usize>, is_code: bool) {
        let text = self.text[bytes.clone()].trim_end();
        let begin = text.len() - text.trim_start().len();
        // The first line of code keeps its indentation.
        let begin = if is_code { text[..begin].rfind('\n').map_or(0, |at| at + 1) } else { begin };
        let (at, text) = (bytes.start + begin, &text[begin..]);
        if text.is_empty() {
            return;
        }
        let header = header.map(|header| self.text[header].trim_end()).unwrap_or_default();
        if context.is_empty() && header.is_empty() {
            self.passages.push(Cut { at, text: Cow::Borrowed(text) });
            return;
        }
        let mut passage = context.to_owned();
        passage.push_str(if context.is_empty() { "" } else { "\n\n" });
        passage.push_str(header);
        passage.push_str(if header.is_empty() { "" } else { "\n" });
        passage.push_str(text);
        self.passages.push(Cut { at, text: Cow::Owned(passage) });
    }

    /// One section that is longer than a passage.
    fn cut(&mut self, section: usize) {
        let (first, rest) = (self.context(section, false), self.context(section, true));
        let taken = weight(&first, self.count).max(weight(&rest, self.count));
        let room = self.budget.tokens.saturating_sub(taken).max(1);
        let headers = self.headers(section, room / CONTEXT_PART);
        let overlap = self.budget.overlap.min(room / 2);
        let most = headers.iter().flatten().map(|(_, weight)| *weight).max().unwrap_or(0);
        let room = room.saturating_sub(most.max(overlap)).max(1);
        let atoms = self.atoms(section, room, &headers);
        let weights: Vec<usize> = atoms.iter().map(|atom| atom.weight).collect();
        let mut earlier: Option<Range<usize>> = None;
        for range in pack(&weights, room).into_iter().filter(|range| !range.is_empty()) {
            let (head, last) = (&atoms[range.start], &atoms[range.end - 1]);
            let mut bytes = head.range.start..last.range.end;
            let is_text = |at: usize| atoms.get(at).is_some_and(|atom| atom.kind == ElementKind::Text);
            if let Some(earlier) = earlier.filter(|_| is_text(range.start) && is_text(range.start.wrapping_sub(1))) {
                // Of the text right before: what a table or code ended with is none.
                let from = atoms[..range.start].iter().rposition(|atom| atom.kind != ElementKind::Text);
                let from = from.map_or(0, |at| atoms[at].range.end).max(earlier.start);
                bytes.start = from + tail(&self.text[from..bytes.start], overlap, self.count);
            }
            let context = if range.start == 0 { &first } else { &rest };
            self.emit(context, head.header.clone(), bytes, head.kind == ElementKind::Code);
            earlier = Some(head.range.start..last.range.end);
        }
    }

    /// For each element of a section: the header that its rows are given, and its weight.
    fn headers(&self, section: usize, most: usize) -> Vec<Option<(Range<usize>, usize)>> {
        let header = |(kind, range): &(ElementKind, Range<usize>)| {
            let ElementKind::Table { header_lines: lines @ 1.. } = *kind else { return None };
            let header: usize = self.text[range.clone()].split_inclusive('\n').take(lines.into()).map(str::len).sum();
            let header = range.start..range.start + header;
            let weight = weight(&self.text[header.clone()], self.count);
            (weight <= most).then_some((header, weight))
        };
        self.sections[section].body.iter().map(header).collect()
    }

    fn atoms(&self, section: usize, room: usize, headers: &[Option<(Range<usize>, usize)>]) -> Vec<Atom> {
        let section = &self.sections[section];
        let mut atoms = Vec::new();
        self.take(section.headings.clone(), ElementKind::Text, None, room, &mut atoms);
        let headings = atoms.len();
        for ((kind, range), header) in section.body.iter().zip(headers) {
            match kind {
                ElementKind::Text | ElementKind::Heading(_) => {
                    for paragraph in pieces(self.text, range, is_paragraph_end) {
                        self.take(paragraph, *kind, None, room, &mut atoms);
                    }
                }
                ElementKind::Code => self.code(range, room, &mut atoms),
                ElementKind::Table { .. } => {
                    let header = header.as_ref().map(|(header, _)| header);
                    let first = header.map_or(range.start, |header| header.end);
                    let mut rows = pieces(self.text, &(first..range.end), |_, _| true);
                    // The first row stands right after the header.
                    match rows.first_mut() {
                        Some(row) => row.start = range.start,
                        None => rows.push(range.clone()),
                    }
                    for (at, row) in rows.into_iter().enumerate() {
                        self.take(row, *kind, header.filter(|_| at > 0), room, &mut atoms);
                    }
                }
            }
        }
        // A heading stands at the top of something.
        if headings == 1 && atoms.len() > 1 && atoms[0].weight + atoms[1].weight <= room {
            let heading = atoms.remove(0);
            atoms[0].range.start = heading.range.start;
            atoms[0].weight += heading.weight;
        }
        atoms
    }

    /// By blank lines where the indentation ends, then by lines.
    fn code(&self, range: &Range<usize>, room: usize, atoms: &mut Vec<Atom>) {
        for definition in pieces(self.text, range, is_definition_end) {
            let tokens = weight(&self.text[definition.clone()], self.count);
            if tokens <= room {
                atoms.push(Atom { range: definition, weight: tokens, kind: ElementKind::Code, header: None });
                continue;
            }
            for line in pieces(self.text, &definition, |_, _| true) {
                self.take(line, ElementKind::Code, None, room, atoms);
            }
        }
    }

    /// A piece as one atom, or as its sentences where it is too long.
    fn take(
        &self,
        range: Range<usize>,
        kind: ElementKind,
        header: Option<&Range<usize>>,
        room: usize,
        atoms: &mut Vec<Atom>,
    ) {
        if range.is_empty() {
            return;
        }
        let (mut broken, mut at) = (Vec::new(), range.start);
        let piece = &self.text[range.clone()];
        match weight(piece, self.count) {
            fits if fits <= room => broken.push((piece, fits)),
            _ => break_down(piece, Border::Sentence, room, self.count, &mut broken),
        }
        for (piece, weight) in broken {
            let range = at..at + piece.len();
            at = range.end;
            let header = header.cloned();
            atoms.push(Atom { range, weight, kind, header });
        }
    }
}

/// The lines of a range, those together between which no piece ends.
fn pieces(text: &str, range: &Range<usize>, ends: impl Fn(&str, &str) -> bool) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (range.start, range.start);
    let mut lines = text[range.clone()].split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        at += line.len();
        if lines.peek().is_none_or(|next| ends(line, next)) {
            pieces.push(start..at);
            start = at;
        }
    }
    pieces
}

fn is_paragraph_end(line: &str, next: &str) -> bool {
    line.trim().is_empty() && !next.trim().is_empty()
}

fn is_definition_end(line: &str, next: &str) -> bool {
    is_paragraph_end(line, next) && !next.starts_with([' ', '\t', '}', ')', ']'])
}

#[cfg(test)]
mod tests;
