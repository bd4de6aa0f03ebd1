//! What a crate's users can name, one line each: the path, and what it is.

use super::tree::{Import, Module, Place, Target, is_hidden, is_public, name_of, within};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;
use syn::{Fields, FnArg, ImplItem, Item, ItemImpl, Pat, Signature, TraitItem, Type};

/// Macros of the crate whose calls define what users see.
const MACROS: [&str; 3] = ["element", "kinds_of_work", "lend"];

type Definition = (Place, String);

/// All public names of a crate.
#[derive(Default)]
pub struct Listing {
    pub lines: BTreeSet<String>,
    /// Those of the root.
    pub root_names: Vec<String>,
    /// Lines that name a type to which no public path leads, and that type.
    pub unnameable: Vec<(String, String)>,
    /// Public paths, by what they lead to.
    paths: BTreeMap<Definition, String>,
    /// Types in lines, where the lines stand.
    named: Vec<(String, Place, Vec<String>)>,
}

impl Listing {
    pub fn of(root: &Module) -> Listing {
        let mut listing = Listing::default();
        listing.walk(root, &Vec::new(), "linerate");
        root.for_each(&Vec::new(), &mut |place, module| {
            for item in &module.items {
                match item {
                    Item::Impl(of) => listing.add_impl(root, place, of),
                    Item::Macro(call) if call.ident.is_none() => {
                        listing.add_call(place, &call.mac);
                    }
                    _ => {}
                }
            }
        });
        for (line, place, path) in std::mem::take(&mut listing.named) {
            if let Target::Item(of, name) = root.resolve(&place, &path) {
                // The length of an array is a number to users.
                if let Some(Item::Const(_)) = root.at(&of).item(&name) {
                    continue;
                }
                let is_known = listing.paths.contains_key(&(of.clone(), name.clone()));
                if !is_known {
                    let hidden = within(&of, &name).join("::");
                    listing.unnameable.push((line, hidden));
                }
            }
        }
        listing
    }

    /// The public names of a module that users know by this path.
    fn walk(&mut self, root: &Module, place: &Place, path: &str) {
        let module = root.at(place);
        let mut names = Vec::new();
        for item in &module.items {
            if let Some(name) = name_of(item).filter(|_| is_shown(item)) {
                self.define(item, place, &name, &format!("{path}::{name}"));
                names.push(name);
            }
        }
        for Import {
            name, path: from, ..
        } in module.imports.iter().filter(|i| i.is_public)
        {
            let Target::Item(of, own) = root.resolve(place, from) else {
                panic!("{path}: no item is at {}", from.join("::"));
            };
            let public = format!("{path}::{name}");
            match root.at(&of).item(&own) {
                Some(item) => self.define(item, &of, &own, &public),
                None => {
                    self.add(&public, "by a macro".into());
                    self.paths.insert((of, own), public);
                }
            }
            names.push(name.clone());
        }
        // After the names of this module: the shortest path of an item is its own.
        let children = module.children.iter();
        for (name, _) in children.filter(|(_, child)| child.is_public && !child.is_hidden) {
            names.push(name.clone());
            self.lines.insert(format!("{path}::{name} | mod"));
            self.walk(root, &within(place, name), &format!("{path}::{name}"));
        }
        names.sort_unstable();
        if place.is_empty() {
            self.root_names = names;
        }
    }

    fn add(&mut self, path: &str, what: String) -> String {
        let line = format!("{path} | {what}");
        self.lines.insert(line.clone());
        line
    }

    /// Adds a line and keeps the types in `of` for later, when all public paths are known.
    fn add_naming(
        &mut self,
        path: &str,
        what: String,
        place: &Place,
        collect: impl FnOnce(&mut Types),
    ) {
        let line = self.add(path, what);
        let mut types = Types::default();
        collect(&mut types);
        let named = types
            .0
            .into_iter()
            .map(|of| (line.clone(), place.clone(), of));
        self.named.extend(named);
    }

    /// An item that `public` leads to.
    fn define(&mut self, item: &Item, place: &Place, own: &str, public: &str) {
        let definition = (place.clone(), own.to_owned());
        if let Some(first) = self.paths.get(&definition) {
            let first = format!("= {first}");
            self.add(public, first);
            return;
        }
        self.paths.insert(definition, public.to_owned());
        match item {
            Item::Struct(of) => {
                let (generics, place) = (&of.generics, place.clone());
                let line = format!(
                    "struct {own}{}",
                    text(&generics.params.to_token_stream(), "<", ">")
                );
                self.add_naming(public, line, &place, |types| types.visit_generics(generics));
                self.derives(public, &of.attrs);
                for (index, field) in of.fields.iter().enumerate() {
                    if is_public(&field.vis) && !is_hidden(&field.attrs) {
                        let name =
                            (field.ident.as_ref()).map_or(index.to_string(), |i| i.to_string());
                        let ty = pretty(&field.ty);
                        self.add_naming(&format!("{public}::{name}"), ty, &place, |types| {
                            types.visit_type(&field.ty)
                        });
                    }
                }
            }
            Item::Enum(of) => {
                self.add(public, format!("enum {own}"));
                self.derives(public, &of.attrs);
                for variant in &of.variants {
                    let fields = match &variant.fields {
                        Fields::Unit => String::new(),
                        Fields::Unnamed(_) => {
                            let types = variant.fields.iter().map(|field| pretty(&field.ty));
                            format!("({})", types.collect::<Vec<_>>().join(", "))
                        }
                        Fields::Named(_) => {
                            let named = variant.fields.iter().map(|field| {
                                let name = field.ident.as_ref().expect("it is named");
                                format!("{name}: {}", pretty(&field.ty))
                            });
                            format!(" {{ {} }}", named.collect::<Vec<_>>().join(", "))
                        }
                    };
                    let path = format!("{public}::{}", variant.ident);
                    self.add_naming(&path, format!("variant{fields}"), place, |types| {
                        types.visit_fields(&variant.fields)
                    });
                }
            }
            Item::Trait(of) => {
                let bounds = text(&of.supertraits.to_token_stream(), ": ", "");
                let generics = text(&of.generics.params.to_token_stream(), "<", ">");
                self.add(public, format!("trait {own}{generics}{bounds}"));
                for item in &of.items {
                    self.add_trait_item(public, place, item);
                }
            }
            Item::Fn(of) => {
                self.add_naming(public, signature(&of.sig), place, |types| {
                    types.visit_signature(&of.sig)
                });
            }
            Item::Const(of) => {
                let what = format!("const {own}: {}", pretty(&of.ty));
                self.add_naming(public, what, place, |types| types.visit_type(&of.ty));
            }
            Item::Type(of) => {
                let generics = text(&of.generics.params.to_token_stream(), "<", ">");
                let what = format!("type {own}{generics} = {}", pretty(&of.ty));
                self.add_naming(public, what, place, |types| types.visit_type(&of.ty));
            }
            _ => panic!("{public} is of a kind that this test does not know"),
        }
    }

    fn derives(&mut self, public: &str, attributes: &[syn::Attribute]) {
        for attribute in attributes.iter().filter(|a| a.path().is_ident("derive")) {
            let list = attribute.meta.require_list().expect("derives are lists");
            for name in list.tokens.to_string().split(',') {
                let name = name.rsplit("::").next().unwrap_or(name).trim();
                if !name.is_empty() {
                    self.add(public, format!("derive {name}"));
                }
            }
        }
    }

    fn add_trait_item(&mut self, public: &str, place: &Place, item: &TraitItem) {
        match item {
            TraitItem::Fn(of) if !is_hidden(&of.attrs) => {
                let body = if of.default.is_some() { " { .. }" } else { "" };
                let what = format!("{}{body}", signature(&of.sig));
                let path = format!("{public}::{}", of.sig.ident);
                self.add_naming(&path, what, place, |types| types.visit_signature(&of.sig));
            }
            TraitItem::Const(of) if !is_hidden(&of.attrs) => {
                let what = format!("const {}: {}", of.ident, pretty(&of.ty));
                self.add(&format!("{public}::{}", of.ident), what);
            }
            TraitItem::Type(of) => {
                self.add(&format!("{public}::{}", of.ident), "type".into());
            }
            _ => {}
        }
    }

    /// The methods of an `impl` of a public type, also those of traits.
    fn add_impl(&mut self, root: &Module, place: &Place, of: &ItemImpl) {
        let Type::Path(ty) = &*of.self_ty else { return };
        let Target::Item(at, name) = root.resolve(place, &names(&ty.path)) else {
            return;
        };
        let Some(public) = self.paths.get(&(at, name)).cloned() else {
            return;
        };
        let of_trait = of.trait_.as_ref().map(|(_, path, _)| pretty(path));
        let is_method = |item: &&ImplItem| matches!(item, ImplItem::Fn(_));
        if let Some(name) = of_trait
            .as_ref()
            .filter(|_| !of.items.iter().any(|i| is_method(&i)))
        {
            self.add(&public, format!("impl {name}"));
        }
        for item in &of.items {
            match item {
                ImplItem::Fn(of) if !is_hidden(&of.attrs) => {
                    let path = format!("{public}::{}", of.sig.ident);
                    match &of_trait {
                        Some(name) => {
                            self.add(&path, format!("{name}: {}", signature(&of.sig)));
                        }
                        None if is_public(&of.vis) => {
                            let what = signature(&of.sig);
                            self.add_naming(&path, what, place, |types| {
                                types.visit_signature(&of.sig)
                            });
                        }
                        None => {}
                    }
                }
                ImplItem::Const(of) if is_public(&of.vis) && !is_hidden(&of.attrs) => {
                    let what = format!("const {}: {}", of.ident, pretty(&of.ty));
                    self.add_naming(&format!("{public}::{}", of.ident), what, place, |types| {
                        types.visit_type(&of.ty)
                    });
                }
                _ => {}
            }
        }
    }

    fn add_call(&mut self, place: &Place, call: &syn::Macro) {
        let name = names(&call.path).join("::");
        if MACROS.contains(&name.as_str()) {
            let code = without_docs(&call.tokens);
            self.add(
                &format!("linerate: {}", place.join("::")),
                format!("{name}! {code}"),
            );
        }
    }
}

fn is_shown(item: &Item) -> bool {
    let (vis, attributes) = match item {
        Item::Const(item) => (&item.vis, &item.attrs),
        Item::Enum(item) => (&item.vis, &item.attrs),
        Item::Fn(item) => (&item.vis, &item.attrs),
        Item::Static(item) => (&item.vis, &item.attrs),
        Item::Struct(item) => (&item.vis, &item.attrs),
        Item::Trait(item) => (&item.vis, &item.attrs),
        Item::Type(item) => (&item.vis, &item.attrs),
        Item::Union(item) => (&item.vis, &item.attrs),
        _ => return false,
    };
    is_public(vis) && !is_hidden(attributes)
}

/// The paths of the types and traits in a signature.
#[derive(Default)]
struct Types(Vec<Vec<String>>);

impl<'a> Visit<'a> for Types {
    fn visit_path(&mut self, path: &'a syn::Path) {
        self.0.push(names(path));
        syn::visit::visit_path(self, path);
    }
}

fn names(path: &syn::Path) -> Vec<String> {
    path.segments
        .iter()
        .map(|segment| segment.ident.to_string())
        .collect()
}

/// Tokens between two texts, or nothing where there are none.
fn text(tokens: &impl ToTokens, before: &str, after: &str) -> String {
    match pretty(tokens) {
        tokens if tokens.is_empty() => tokens,
        tokens => format!("{before}{tokens}{after}"),
    }
}

/// Tokens without the doc comments among them.
fn without_docs(tokens: &impl ToTokens) -> String {
    let all = pretty(tokens);
    let mut rest = all.as_str();
    let mut kept = String::new();
    while let Some(at) = rest.find("#[doc =") {
        kept.push_str(&rest[..at]);
        let quoted = rest[at..].split_once('"').expect("docs are strings").1;
        let (mut end, mut is_escaped) = (0, false);
        for (index, character) in quoted.char_indices() {
            end = index;
            match character {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => break,
                _ => {}
            }
        }
        rest = quoted[end + 1..].trim_start_matches([']', ' ']);
    }
    kept + rest
}

/// A signature without what only its body sees.
fn signature(of: &Signature) -> String {
    let mut of = of.clone();
    for input in &mut of.inputs {
        if let FnArg::Typed(input) = input
            && let Pat::Ident(name) = &mut *input.pat
        {
            name.mutability = None;
        }
    }
    pretty(&of)
}

/// Rust as people write it, on one line.
fn pretty(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string().replace('\n', " ");
    let changes = [
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" ,", ","),
        (" ;", ";"),
        (" :", ":"),
        ("& ", "&"),
        ("* const", "*const"),
        ("* mut", "*mut"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("[ ", "["),
        (" ]", "]"),
        (" <", "<"),
        ("< ", "<"),
        ("# [", "#["),
        (",)", ")"),
        (",>", ">"),
        ("! [", "!["),
    ];
    // An arrow keeps its distance.
    text = text.replace("->", "\u{1}").replace("=>", "\u{2}");
    for (from, to) in changes {
        text = text.replace(from, to);
    }
    text = text.replace(" >", ">");
    text = text
        .replace("mut(", "mut (")
        .replace("dyn<", "dyn <")
        .replace("->(", "-> (");
    text = text.replace('\u{1}', "->").replace('\u{2}', "=>");
    text.replace("->(", "-> (")
        .replace("=(", "= (")
        .replace(",(", ", (")
        .replace(":(", ": (")
}
