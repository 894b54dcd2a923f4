//! What pages draw, made plain for the PDF library: text and its places alone. The library draws forms (drawings within
//! drawings) where the page begins and images as if they were text, and gives up on colours and shapes it does not know.

use std::collections::{BTreeMap, HashMap};

use pdf_extract::content::{Content, Operation};
use pdf_extract::{Dictionary, Document, Object, ObjectId, Stream, dictionary};

use super::fonts::{self, drawn_scale, is_bold, numbers};
use super::matrix::{Matrix, UNTURNED};
use super::operations;

/// Forms in one another.
const MAX_DEPTH: usize = 12;
/// What pages may draw with, unpacked: of one page, and of all together. A page that draws a map may have megabytes.
const MAX_PAGE_BYTES: usize = 24 << 20;
const MAX_BYTES: usize = 400 << 20;
/// Where a page does not say how large it is.
const LETTER: [f32; 4] = [0.0, 0.0, 612.0, 792.0];
const MAX_PARENTS: usize = 64;

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
    /// Fonts of the page that is open, by the names that it calls them by here.
    fonts: BTreeMap<String, Object>,
    /// Those on which the library gives up, and whether nothing can be read in them.
    bad: HashMap<String, bool>,
    /// Fonts that stand in the resources of their pages, as the library reads them.
    own: HashMap<String, Dictionary>,
}

/// A page as it was opened.
pub struct Opened {
    /// What is known of each of its shown texts, in order.
    pub shows: Vec<Show>,
    /// Whether it was read to its end, with all its fonts.
    pub is_whole: bool,
}

impl Pages {
    /// `None` where it has no catalog of pages.
    pub fn of(mut document: Document) -> Option<Self> {
        let ids: Vec<ObjectId> = document.page_iter().collect();
        fonts::mend(&mut document);
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
        let (fonts, bad, own) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Some(Self { document, ids, stage, made: Vec::new(), bytes_left: MAX_BYTES, fonts, bad, own })
    }

    /// Makes a page the only one.
    ///
    /// # Errors
    /// Where it draws too much.
    pub fn open(&mut self, page: ObjectId) -> Result<Opened, TooMuch> {
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
            fonts: BTreeMap::new(),
            bad: &self.bad,
            own: &self.own,
            page: page.0,
            is_whole: true,
        };
        let before = cleaner.bytes_left;
        let (content, resources) = cleaner.clean(&content, &resources, None, 0)?;
        let Cleaner { mut made, next, shows, bytes_left, fonts, is_whole, .. } = cleaner;
        self.fonts = fonts;
        self.bytes_left -= before - bytes_left;
        let id = (next, 0);
        made.push((id, Stream::new(Dictionary::new(), content)));
        self.set_stage(media.unwrap_or(LETTER), resources, id);
        for (id, stream) in made {
            self.document.objects.insert(id, Object::Stream(stream));
            self.made.push(id);
        }
        Ok(Opened { shows, is_whole })
    }

    fn set_stage(&mut self, media: [f32; 4], resources: Dictionary, content: ObjectId) {
        let media: Vec<Object> = media.into_iter().map(Object::Real).collect();
        let page = dictionary! {
            "Type" => "Page", "MediaBox" => media, "Resources" => resources, "Contents" => Object::Reference(content),
        };
        self.document.objects.insert(self.stage, Object::Dictionary(page));
    }

    /// Puts the fonts of the page on which the library gives up so that it reads them, or leaves out what is written in them. Whether there were
    /// any: the page is to be opened again then.
    pub fn mend_fonts(&mut self) -> bool {
        let mut had = false;
        for (name, font) in std::mem::take(&mut self.fonts) {
            if self.is_read(font.clone()) {
                continue;
            }
            had = true;
            let known = self.document.dereference(&font).ok().and_then(|(_, font)| font.as_dict().ok());
            let others = known.map(|font| fonts::simpler(&self.document, font)).unwrap_or_default();
            let Some(found) = others.into_iter().find(|other| self.is_read(Object::Dictionary(other.clone()))) else {
                self.bad.insert(name, true);
                continue;
            };
            // What its map says is all that it says.
            if !found.has(b"ToUnicode") {
                self.bad.insert(name.clone(), false);
            }
            match font.as_reference() {
                Ok(id) => drop(self.document.objects.insert(id, Object::Dictionary(found))),
                Err(_) => drop(self.own.insert(name, found)),
            }
        }
        had
    }

    /// Whether the library reads every letter of a font.
    fn is_read(&mut self, font: Object) -> bool {
        let id = (self.document.max_id + 1, 0);
        let letters: String = (0..=u8::MAX).map(|code| format!("{code:02x}")).collect();
        let content = format!("BT /F 1 Tf <{letters}> Tj ET").into_bytes();
        self.document.objects.insert(id, Object::Stream(Stream::new(Dictionary::new(), content)));
        self.made.push(id);
        let mut named = Dictionary::new();
        named.set("F", font);
        self.set_stage(LETTER, dictionary! { "Font" => named }, id);
        fonts::is_read(&self.document)
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

struct Cleaner<'d> {
    document: &'d Document,
    made: Vec<(ObjectId, Stream)>,
    next: u32,
    /// The forms that are being drawn.
    open: Vec<ObjectId>,
    shows: Vec<Show>,
    bytes_left: usize,
    fonts: BTreeMap<String, Object>,
    bad: &'d HashMap<String, bool>,
    own: &'d HashMap<String, Dictionary>,
    page: u32,
    is_whole: bool,
}

/// A font as a page calls it. The library knows fonts of a page by their names, so that those of drawings need other ones.
#[derive(Clone)]
struct Font {
    name: String,
    /// `None` where nobody can read it.
    show: Option<Show>,
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
    fonts: HashMap<Vec<u8>, Option<Font>>,
    needed: Dictionary,
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
        let (all, is_whole) = operations::read(content);
        self.is_whole &= is_whole;
        let state = State { place: place.unwrap_or(UNTURNED), font: None };
        let mut drawing = Drawing {
            resources,
            depth,
            state,
            kept: Vec::new(),
            fonts: HashMap::new(),
            needed: Dictionary::new(),
            marked: Vec::new(),
            forms: Dictionary::new(),
            operations: place.map(Matrix::operation).into_iter().collect(),
        };
        for operation in all {
            self.take(operation, &mut drawing)?;
        }
        let Drawing { forms, needed, operations, .. } = drawing;
        let needed = dictionary! { "XObject" => forms, "Font" => needed };
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
                let size = operands.get(1).filter(|size| size.as_float().is_ok());
                if let (Some(Font { name, show }), Some(size)) = (self.font(name, drawing), size) {
                    drawing.state.font = show;
                    if show.is_some() {
                        let operands = vec![Object::Name(name.into_bytes()), size.clone()];
                        drawing.operations.push(Operation::new("Tf", operands));
                    }
                }
                false
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

    fn font(&mut self, name: &[u8], drawing: &mut Drawing<'_>) -> Option<Font> {
        if let Some(known) = drawing.fonts.get(name) {
            return known.clone();
        }
        let made = self.named(name, drawing);
        drawing.fonts.insert(name.to_vec(), made.clone());
        made
    }

    /// A font of a drawing by a name of its own.
    fn named(&mut self, name: &[u8], drawing: &mut Drawing<'_>) -> Option<Font> {
        let document = self.document;
        let fonts = drawing.resources.get_deref(b"Font", document).and_then(Object::as_dict).ok()?;
        let object = fonts.get(name).ok()?;
        let font = document.dereference(object).ok()?.1.as_dict().ok()?;
        // One that stands in the resources is of these alone.
        let (called, object, font) = match object.as_reference() {
            Ok(id) => (format!("G{}-{}", id.0, id.1), object.clone(), font.clone()),
            Err(_) => {
                let called = format!("D{}-{}", self.page, self.fonts.len());
                let own = self.own.get(&called).cloned().or_else(|| fonts::mended(document, font));
                let font = own.unwrap_or_else(|| font.clone());
                (called, Object::Dictionary(font.clone()), font)
            }
        };
        let show = Show {
            is_bold: is_bold(document, &font),
            is_head: false,
            scale: drawn_scale(document, &font).unwrap_or(1.0),
        };
        let bad = self.bad.get(&called).copied();
        self.is_whole &= bad.is_none();
        drawing.needed.set(called.clone(), object.clone());
        self.fonts.insert(called.clone(), object);
        Some(Font { name: called, show: Some(show).filter(|_| bad != Some(true)) })
    }

    /// Tagged files say what is no part of the text.
    fn is_head(&self, operands: &[Object]) -> bool {
        let is = |object: &Object, name: &[u8]| object.as_name().is_ok_and(|is| is == name);
        let [tag, Object::Dictionary(about)] = operands else { return false };
        is(tag, b"Artifact") && about.get_deref(b"Type", self.document).is_ok_and(|kind| is(kind, b"Pagination"))
    }
}
