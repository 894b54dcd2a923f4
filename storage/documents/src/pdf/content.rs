//! What pages draw, made plain for the PDF library: text and its places alone. The library draws forms (drawings within
//! drawings) where the page begins and images as if they were text, and gives up on colours and shapes it does not know.

use std::collections::HashMap;

use pdf_extract::content::{Content, Operation};
use pdf_extract::{Dictionary, Document, Object, ObjectId, Stream, dictionary};

/// Forms in one another.
const MAX_DEPTH: usize = 12;
/// What pages may draw with, unpacked: of one page, and of all together. A page that draws a map may have megabytes.
const MAX_PAGE_BYTES: usize = 24 << 20;
const MAX_BYTES: usize = 400 << 20;
/// Where a page does not say how large it is.
const LETTER: [f32; 4] = [0.0, 0.0, 612.0, 792.0];
const MAX_PARENTS: usize = 64;
/// Letters of a font, twice over.
const MAX_LETTERS: usize = 1 << 17;

/// What the library does not say of the text that it shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Show {
    pub is_bold: bool,
    /// The file says that it is a running head or foot.
    pub is_head: bool,
    /// How large the font's letters are, of what a font of its size should have.
    pub scale: f32,
}

const PLAIN: Show = Show { is_bold: false, is_head: false, scale: 1.0 };

impl Default for Show {
    fn default() -> Self {
        PLAIN
    }
}

/// The pages of a file, one at a time as the file's only one.
pub struct Pages {
    pub document: Document,
    pub ids: Vec<ObjectId>,
    /// The page that the library sees.
    stage: ObjectId,
    made: Vec<ObjectId>,
    bytes_left: usize,
}

impl Pages {
    /// `None` where it has no catalog of pages.
    pub fn of(mut document: Document) -> Option<Self> {
        let ids: Vec<ObjectId> = document.page_iter().collect();
        widen_drawn_fonts(&mut document);
        list_widths(&mut document);
        let first = document.objects.keys().next_back().map_or(1, |id| id.0 + 1).max(document.max_id + 1);
        let (root, stage) = ((first, 0), (first + 1, 0));
        document.max_id = first + 1;
        document.objects.insert(
            root,
            Object::Dictionary(
                dictionary! { "Type" => "Pages", "Count" => 1, "Kids" => vec![Object::Reference(stage)] },
            ),
        );
        document.catalog_mut().ok()?.set("Pages", Object::Reference(root));
        Some(Self { document, ids, stage, made: Vec::new(), bytes_left: MAX_BYTES })
    }

    /// Makes a page the only one. Returns what is known of each of its shown texts, in order.
    ///
    /// # Errors
    /// Where it draws too much.
    pub fn open(&mut self, page: ObjectId) -> Result<Vec<Show>, TooMuch> {
        for id in self.made.drain(..) {
            self.document.objects.remove(&id);
        }
        let resources = inherited(&self.document, page, b"Resources").and_then(|found| found.as_dict().ok());
        let resources = resources.cloned().unwrap_or_default();
        let media = inherited(&self.document, page, b"MediaBox").and_then(|found| rectangle(&self.document, found));
        let content = self.document.get_page_content(page).unwrap_or_default();
        let mut cleaner = Cleaner {
            document: &self.document,
            made: Vec::new(),
            next: self.document.max_id + 1,
            open: Vec::new(),
            shows: Vec::new(),
            bytes_left: self.bytes_left.min(MAX_PAGE_BYTES),
        };
        let before = cleaner.bytes_left;
        let (content, resources) = cleaner.clean(&content, &resources, None, 0)?;
        let Cleaner { mut made, next, shows, bytes_left, .. } = cleaner;
        self.bytes_left -= before - bytes_left;
        let id = (next, 0);
        made.push((id, Stream::new(Dictionary::new(), content)));
        let media: Vec<Object> = media.unwrap_or(LETTER).into_iter().map(Object::Real).collect();
        let page = dictionary! {
            "Type" => "Page", "MediaBox" => media, "Resources" => resources, "Contents" => Object::Reference(id),
        };
        self.document.objects.insert(self.stage, Object::Dictionary(page));
        for (id, stream) in made {
            self.document.objects.insert(id, Object::Stream(stream));
            self.made.push(id);
        }
        Ok(shows)
    }
}

/// A page that draws more than is looked at.
#[derive(Debug)]
pub struct TooMuch;

/// What a page has itself, or from what it belongs to.
fn inherited<'d>(document: &'d Document, page: ObjectId, key: &[u8]) -> Option<&'d Object> {
    let mut node = document.get_dictionary(page).ok()?;
    for _ in 0..MAX_PARENTS {
        if let Ok(found) = node.get_deref(key, document) {
            return Some(found);
        }
        node = node.get_deref(b"Parent", document).ok()?.as_dict().ok()?;
    }
    None
}

/// Four numbers.
pub fn rectangle(document: &Document, object: &Object) -> Option<[f32; 4]> {
    numbers(document, object)?.try_into().ok()
}

fn numbers(document: &Document, object: &Object) -> Option<Vec<f32>> {
    let (_, object) = document.dereference(object).ok()?;
    let number = |one: &Object| document.dereference(one).ok().and_then(|(_, one)| one.as_float().ok());
    object.as_array().ok()?.iter().map(number).collect()
}

/// A matrix of the plane.
#[derive(Debug, Clone, Copy)]
struct Matrix([f32; 6]);

const UNTURNED: Matrix = Matrix([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);

impl Matrix {
    fn of(operands: &[Object]) -> Option<Self> {
        let numbers: Option<Vec<f32>> = operands.iter().map(|one| one.as_float().ok()).collect();
        numbers?.try_into().ok().map(Self)
    }

    /// First this one, then the other.
    fn then(self, other: Self) -> Self {
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.0, other.0);
        Self([a * g + b * i, a * h + b * j, c * g + d * i, c * h + d * j, e * g + f * i + k, e * h + f * j + l])
    }

    fn operation(self) -> Operation {
        Operation::new("cm", self.0.into_iter().map(Object::Real).collect())
    }
}

struct Cleaner<'d> {
    document: &'d Document,
    made: Vec<(ObjectId, Stream)>,
    next: u32,
    /// The forms that are being drawn.
    open: Vec<ObjectId>,
    shows: Vec<Show>,
    bytes_left: usize,
}

/// What `q` keeps and `Q` brings back, as far as it matters.
#[derive(Clone, Copy)]
struct State {
    place: Matrix,
    /// Of the font that is set, if one is.
    font: Option<Show>,
}

/// Of one drawing.
struct Drawing<'d> {
    resources: &'d Dictionary,
    depth: usize,
    state: State,
    kept: Vec<State>,
    fonts: HashMap<Vec<u8>, Option<Show>>,
    /// For each part that is open whether it is a running head or foot.
    marked: Vec<bool>,
    forms: Dictionary,
    operations: Vec<Operation>,
}

impl<'d> Cleaner<'d> {
    /// The operations that show text and place it, and the resources that they need.
    fn clean(
        &mut self,
        content: &[u8],
        resources: &Dictionary,
        place: Option<Matrix>,
        depth: usize,
    ) -> Result<(Vec<u8>, Dictionary), TooMuch> {
        self.bytes_left = self.bytes_left.checked_sub(content.len()).ok_or(TooMuch)?;
        let all = Content::decode(content).map(|content| content.operations).unwrap_or_default();
        let state = State { place: place.unwrap_or(UNTURNED), font: None };
        let mut drawing = Drawing {
            resources,
            depth,
            state,
            kept: Vec::new(),
            fonts: HashMap::new(),
            marked: Vec::new(),
            forms: Dictionary::new(),
            operations: place.map(Matrix::operation).into_iter().collect(),
        };
        for operation in all {
            self.take(operation, &mut drawing)?;
        }
        let Drawing { forms, operations, .. } = drawing;
        let mut needed = dictionary! { "XObject" => forms };
        needed.set("Font", resources.get(b"Font").cloned().unwrap_or_else(|_| Dictionary::new().into()));
        Ok((Content { operations }.encode().unwrap_or_default(), needed))
    }

    fn take(&mut self, operation: Operation, drawing: &mut Drawing<'_>) -> Result<(), TooMuch> {
        let operands = &operation.operands;
        let numbers = |count: usize| operands.len() == count && operands.iter().all(|one| one.as_float().is_ok());
        let keep = match operation.operator.as_str() {
            "BT" | "ET" | "T*" => true,
            "Tc" | "Tw" | "Tz" | "TL" | "Ts" => numbers(1),
            "Td" | "TD" => numbers(2),
            "Tm" => numbers(6),
            "q" => {
                drawing.kept.push(drawing.state);
                true
            }
            "Q" => {
                drawing.state = drawing.kept.pop().unwrap_or(drawing.state);
                true
            }
            "cm" => {
                let matrix = Matrix::of(operands);
                drawing.state.place = matrix.map_or(drawing.state.place, |matrix| matrix.then(drawing.state.place));
                matrix.is_some()
            }
            "Tf" => {
                let name = operands.first().and_then(|name| name.as_name().ok()).unwrap_or_default();
                let font = self.font(name, drawing);
                let is_known = font.is_some() && operands.get(1).is_some_and(|size| size.as_float().is_ok());
                drawing.state.font = if is_known { font } else { drawing.state.font };
                is_known
            }
            "BMC" | "BDC" => {
                let is_head = drawing.marked.last().is_some_and(|is_head| *is_head) || self.is_head(operands);
                drawing.marked.push(is_head);
                false
            }
            "EMC" => {
                drawing.marked.pop();
                false
            }
            "Do" => {
                if let Some(name) = operands.first().and_then(|name| name.as_name().ok()) {
                    self.form(name, drawing)?;
                }
                false
            }
            "Tj" | "TJ" | "'" | "\"" => {
                self.show(operation, drawing);
                return Ok(());
            }
            _ => false,
        };
        if keep {
            drawing.operations.push(operation);
        }
        Ok(())
    }

    /// A text, by the two operations that the library knows.
    fn show(&mut self, mut operation: Operation, drawing: &mut Drawing<'_>) {
        let Some(font) = drawing.state.font else { return };
        let Some(shown) = operation.operands.pop() else { return };
        if matches!(operation.operator.as_str(), "'" | "\"") {
            let before = std::mem::take(&mut operation.operands);
            if before.iter().all(|one| one.as_float().is_ok()) {
                let spacing = ["Tw", "Tc"].into_iter().zip(before).map(|(name, one)| Operation::new(name, vec![one]));
                drawing.operations.extend(spacing);
            }
            drawing.operations.push(Operation::new("T*", vec![]));
        }
        let show = Show { is_head: drawing.marked.last().is_some_and(|is_head| *is_head), ..font };
        let (operator, texts) = match &shown {
            Object::String(..) => ("Tj", 1),
            Object::Array(parts) => ("TJ", parts.iter().filter(|part| matches!(part, Object::String(..))).count()),
            _ => return,
        };
        self.shows.extend(std::iter::repeat_n(show, texts));
        drawing.operations.push(Operation::new(operator, vec![shown]));
    }

    /// Another drawing, at its place.
    fn form(&mut self, name: &[u8], drawing: &mut Drawing<'_>) -> Result<(), TooMuch> {
        let document = self.document;
        let forms = drawing.resources.get_deref(b"XObject", document).and_then(Object::as_dict);
        let Ok(forms) = forms else { return Ok(()) };
        let Ok(form) = forms.get_deref(name, document).and_then(Object::as_stream) else { return Ok(()) };
        // One that draws itself would do so for ever.
        let id = forms.get(name).and_then(Object::as_reference).ok();
        if id.is_some_and(|id| self.open.contains(&id)) {
            return Ok(());
        }
        let is_form = form.dict.get_deref(b"Subtype", document).and_then(Object::as_name).is_ok_and(|is| is == b"Form");
        if !is_form || drawing.depth >= MAX_DEPTH {
            return Ok(());
        }
        let matrix = form.dict.get(b"Matrix").ok().and_then(|matrix| numbers(document, matrix));
        let matrix = matrix.and_then(|matrix| matrix.try_into().ok()).map_or(UNTURNED, Matrix);
        let own = form.dict.get_deref(b"Resources", document).and_then(Object::as_dict).ok();
        let content = form.decompressed_content().unwrap_or_else(|_| form.content.clone());
        // What it costs to look at, beside its bytes.
        self.bytes_left = self.bytes_left.checked_sub(1 << 8).ok_or(TooMuch)?;
        let place = matrix.then(drawing.state.place);
        self.open.extend(id);
        let cleaned = self.clean(&content, own.unwrap_or(drawing.resources), Some(place), drawing.depth + 1);
        self.open.truncate(self.open.len() - usize::from(id.is_some()));
        let (content, needed) = cleaned?;
        let id = (self.next, 0);
        self.next += 1;
        self.made.push((id, Stream::new(dictionary! { "Resources" => needed }, content)));
        let name = format!("R{}", id.0);
        drawing.forms.set(name.clone(), Object::Reference(id));
        drawing.operations.push(Operation::new("Do", vec![Object::Name(name.into_bytes())]));
        Ok(())
    }

    fn font(&self, name: &[u8], drawing: &mut Drawing<'_>) -> Option<Show> {
        if let Some(known) = drawing.fonts.get(name) {
            return *known;
        }
        let fonts = drawing.resources.get_deref(b"Font", self.document).and_then(Object::as_dict);
        let font = fonts.and_then(|fonts| fonts.get_deref(name, self.document)).and_then(Object::as_dict);
        let show = font.ok().map(|font| Show {
            is_bold: is_bold(self.document, font),
            is_head: false,
            scale: drawn_scale(self.document, font).unwrap_or(1.0),
        });
        drawing.fonts.insert(name.to_vec(), show);
        show
    }

    /// Tagged files say what is no part of the text.
    fn is_head(&self, operands: &[Object]) -> bool {
        let is = |object: &Object, name: &[u8]| object.as_name().is_ok_and(|is| is == name);
        let [tag, Object::Dictionary(about)] = operands else { return false };
        is(tag, b"Artifact") && about.get_deref(b"Type", self.document).is_ok_and(|kind| is(kind, b"Pagination"))
    }
}

/// By its name, as nothing else tells it reliably.
fn is_bold(document: &Document, font: &Dictionary) -> bool {
    let Ok(name) = font.get_deref(b"BaseFont", document).and_then(Object::as_name) else { return false };
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    ["bold", "black", "heavy", "demi", "cmbx", "sfbx", "nimbussanl-bold"].iter().any(|part| name.contains(part))
}

/// The first of a drawn font's matrix: its widths times it are ems.
fn drawn_unit(document: &Document, font: &Dictionary) -> Option<f32> {
    let is_drawn = font.get_deref(b"Subtype", document).and_then(Object::as_name).is_ok_and(|kind| kind == b"Type3");
    let matrix = font.get(b"FontMatrix").ok().filter(|_| is_drawn).and_then(|matrix| numbers(document, matrix))?;
    matrix.first().copied().filter(|unit| unit.is_normal())
}

/// The em of a font that is drawn, as its letters are wide: some are one unit large, and the page is scaled.
fn drawn_scale(document: &Document, font: &Dictionary) -> Option<f32> {
    drawn_unit(document, font)?;
    let widths = numbers(document, font.get(b"Widths").ok()?)?;
    let widths: Vec<f32> = widths.into_iter().filter(|width| *width > 0.0).collect();
    // Their widths are in thousandths by now.
    let em = 2.0 * widths.iter().sum::<f32>() / widths.len().max(1) as f32 / 1000.0;
    Some(em).filter(|em| em.is_normal() && !(0.4..2.5).contains(em))
}

/// The library misreads a width that is given for several letters at once, so that each gets its own.
pub fn list_widths(document: &mut Document) {
    let mut listed = Vec::new();
    for (id, object) in &document.objects {
        let widths = object.as_dict().and_then(|font| font.get_deref(b"W", document)).and_then(Object::as_array);
        let Ok(widths) = widths else { continue };
        if let Some(list) = each_width(document, widths) {
            listed.push((*id, list));
        }
    }
    for (id, list) in listed {
        if let Ok(font) = document.get_object_mut(id).and_then(Object::as_dict_mut) {
            font.set("W", list);
        }
    }
}

/// `[1 [500 600] 7 9 500]` as `[1 [500 600] 7 [500 500 500]]`; `None` where it is so already.
fn each_width(document: &Document, widths: &[Object]) -> Option<Vec<Object>> {
    let plain = |object: &Object| document.dereference(object).ok().map(|(_, object)| object.clone());
    let mut list = Vec::new();
    let mut letters = 0;
    let mut is_changed = false;
    let mut rest = widths.iter();
    while let (Some(first), Some(next)) = (rest.next(), rest.next()) {
        let (first, next) = (plain(first)?, plain(next)?);
        if matches!(next, Object::Array(_)) {
            list.extend([first, next]);
            continue;
        }
        let width = plain(rest.next()?)?;
        let count = usize::try_from(next.as_i64().ok()?.checked_sub(first.as_i64().ok()?)?.checked_add(1)?).ok()?;
        letters += count.min(MAX_LETTERS + 1);
        if letters > MAX_LETTERS {
            return None;
        }
        list.extend([first, Object::Array(vec![width; count])]);
        is_changed = true;
    }
    is_changed.then_some(list)
}

/// The library takes the widths of fonts that are drawn to be thousandths, whatever their matrix says.
fn widen_drawn_fonts(document: &mut Document) {
    let mut widened = Vec::new();
    for (id, object) in &document.objects {
        let Ok(font) = object.as_dict() else { continue };
        let Some(unit) = drawn_unit(document, font) else { continue };
        let Some(widths) = font.get(b"Widths").ok().and_then(|widths| numbers(document, widths)) else { continue };
        widened.push((*id, widths.into_iter().map(|width| Object::Real(width * unit * 1000.0)).collect::<Vec<_>>()));
    }
    for (id, widths) in widened {
        if let Ok(font) = document.get_object_mut(id).and_then(Object::as_dict_mut) {
            font.set("Widths", widths);
        }
    }
}
