#!/usr/bin/env python3
"""Phone screens for the demo model: twelve invented apps, two agents, episodes of 4 to 8 steps.

    python screens.py            writes demo.jsonl and heldout.jsonl into ../traces

Every line is {"app", "agent", "episode", "step", "request", "expect"}; `request` is an OpenAI chat-completions body.
The output is a pure function of this file: no clock, no unseeded randomness, no input.
"""

import hashlib
import json
import pathlib
import random

MAX_TOKENS = 48
HISTORY = 3

# --------------------------------------------------------------------------------------------------------------------
# Agents: the rules, the words of the answer and its schema.


class Agent:
    """One client app: how it words a request and which JSON it wants back."""

    def __init__(self, name, rules, rules_in_system, heads, keys, schema_name, schema):
        self.name, self.rules, self.rules_in_system = name, rules, rules_in_system
        self.heads, self.keys, self.schema_name, self.schema = heads, keys, schema_name, schema

    def messages(self, task, app, history, controls):
        task_head, app_head, history_head, none, screen_head = self.heads
        body = "\n".join(
            [f"{task_head}: {task}", f"{app_head}: {app}", f"{history_head}:"]
            + [f"- {line}" for line in history[-HISTORY:] or [none]]
            + [f"{screen_head}:"]
            + controls
        )
        if self.rules_in_system:
            return [{"role": "system", "content": self.rules}, {"role": "user", "content": body}]
        return [{"role": "user", "content": self.rules + "\n\n" + body}]

    def answer(self, kind, target=None, text=None):
        verb, number, words = self.keys["verb"], self.keys["target"], self.keys["text"]
        out = {verb: self.keys[kind]}
        if target is not None:
            out[number] = target
        if text is not None:
            out[words] = text
        return json.dumps(out, ensure_ascii=False, separators=(",", ":"))


def _object(properties, required):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_NUMBER = {"type": "integer", "minimum": 0, "maximum": 63}
_TEXT = {"type": "string", "maxLength": 40}

OFFICE = Agent(
    "office-agent",
    "You work a phone for its owner. Read the task, the last steps and the screen, then give the one next step as JSON.\n"
    "Steps:\n"
    '{"action":"tap","target":N}\n'
    '{"action":"type","target":N,"text":"..."}\n'
    '{"action":"scroll","target":N}\n'
    '{"action":"back"}\n'
    '{"action":"done"}\n'
    "Use only numbers on the screen. Answer an open dialog first. Type text exactly as the task has it. "
    "Never repeat a step that changed nothing. Say done when the screen shows the result.",
    True,
    ("Task", "App", "Last steps", "none", "Screen"),
    {"verb": "action", "target": "target", "text": "text",
     "tap": "tap", "type": "type", "scroll": "scroll", "back": "back", "done": "done"},
    "next_step",
    {"anyOf": [
        _object({"action": {"const": "tap"}, "target": _NUMBER}, ["action", "target"]),
        _object({"action": {"const": "type"}, "target": _NUMBER, "text": _TEXT}, ["action", "target", "text"]),
        _object({"action": {"const": "scroll"}, "target": _NUMBER}, ["action", "target"]),
        _object({"action": {"const": "back"}}, ["action"]),
        _object({"action": {"const": "done"}}, ["action"]),
    ]},
)

HOME = Agent(
    "home-agent",
    "Household helper. A wish is carried out by one press at a time on this phone; reply with one JSON object only.\n"
    'press a line: {"do":"press","line":N}\n'
    'fill a field: {"do":"enter","line":N,"value":"..."}\n'
    'further down a list: {"do":"more","line":N}\n'
    'leave the page: {"do":"leave"}\n'
    'wish fulfilled: {"do":"finish"}\n'
    "Take the shortest way. A pop-up comes before everything behind it. A box that is already right stays as it is. "
    "Pay for nothing and delete nothing that the wish does not name.",
    False,
    ("Wish", "Open", "Before", "nothing yet", "Lines"),
    {"verb": "do", "target": "line", "text": "value",
     "tap": "press", "type": "enter", "scroll": "more", "back": "leave", "done": "finish"},
    "press",
    _object({"do": {"enum": ["press", "enter", "more", "leave", "finish"]}, "line": _NUMBER, "value": _TEXT}, ["do"]),
)

# --------------------------------------------------------------------------------------------------------------------
# Apps: pages of controls. "Class Label"; {x} is filled from the episode, "*N" becomes N list rows
# with {item} among them, "-N" N rows without it.


class App:
    """A name, the agent that drives it, the entries its lists show, its pages."""

    def __init__(self, name, agent, pool, pages):
        self.name, self.agent, self.pool, self.pages = name, agent, pool, pages


APPS = {app.name: app for app in [
    App("Letterbox", OFFICE,
        ["Anna Hill", "Omar Said", "Zoë Café", "Rent office", "Book club", "Piano school", "Tax advice", "Garden team"],
        {
            "inbox": ["Title Inbox", "Icon Menu", "Icon Search", "*3", "Button Write"],
            "mail": ["Icon Reply", "Icon Archive", "Icon Star", "Text From {item}", "Text {subject}"],
            "write": ["Field To", "Field Subject", "Field Message", "Icon Attach", "Button Send"],
            "sent": ["Text Message sent", "Button Undo", "*2", "Button Write"],
            "inbox2": ["Title Inbox", "Icon Menu", "Icon Search", "-2", "Text Moved to archive"],
            "menu": ["Row Inbox", "Row Sent", "Row Archive", "Row Spam", "Row Settings"],
            "archive": ["Title Archive", "Row {item}", "*2", "Icon Menu"],
            "starred": ["Icon Reply", "Icon Archive", "Icon Star on", "Text From {item}"],
            "settings": ["Row Signature", "Check Show pictures", "Check Loud alerts", "Row Account"],
            "signature": ["Title Signature", "Field Signature", "Button Cancel", "Button Save"],
        }),
    App("Dayplan", OFFICE,
        ["Dentist", "Team lunch", "Chess night", "Yoga class", "Parents' evening", "Car service", "Choir", "Budget talk"],
        {
            "week": ["Icon Menu", "Title Week 12", "*3", "Icon Today", "Button New"],
            "new": ["Field Title", "Row Day Monday", "Row Start 9:00", "Check Remind me", "Button Store"],
            "days": ["Row Monday", "Row Tuesday", "Row Wednesday", "Row Thursday", "Row Friday"],
            "newset": ["Field {title}", "Row Day {day}", "Row Start 9:00", "Check Remind me", "Button Store"],
            "stored": ["Text Stored in {day}", "*3", "Button New"],
            "entry": ["Title {item}", "Row Change", "Row Move", "Row Delete", "Icon Share"],
            "ask": ["Text Delete this entry?", "Button Keep", "Button Delete"],
            "gone": ["Text Entry deleted", "Icon Menu", "Button Undo", "Button New"],
        }),
    App("Papers", OFFICE,
        ["Shopping list", "Gift ideas", "Wifi codes", "Poem", "Training log", "Reading list", "Recipe drafts", "Travel notes"],
        {
            "list": ["Icon Sort", "Icon Search", "*4", "Button Add"],
            "empty": ["Field Title", "Field Body", "Icon Colour", "Icon Lock", "Button Keep"],
            "kept": ["Text Note kept", "Row {title}", "*2", "Button Add"],
            "note": ["Title {item}", "Text Body", "Icon Pin", "Icon More"],
            "more": ["Row Export", "Row Rename", "Row Colour", "Row Delete"],
            "rename": ["Text New name", "Field {item}", "Button Cancel", "Button OK"],
            "renamed": ["Title {title}", "Text Body", "Icon Pin", "Icon More"],
            "colours": ["Box Yellow", "Box Green", "Box Blue", "Box Red", "Box White"],
            "coloured": ["Title {item}", "Text Colour {colour}", "Icon Pin", "Icon More"],
        }),
    App("Circle", OFFICE,
        ["Mina Park", "Tom Weiß", "Lola Díaz", "Ivo Krall", "Grace Obi", "Sam Lund", "Kenji Mori", "Ruth Adler"],
        {
            "people": ["Icon Search", "Icon Filter", "*4", "Button Person"],
            "search": ["Icon Back", "Field Name", "Icon Voice"],
            "found": ["Field {item}", "Row {item}", "Text One match"],
            "card": ["Title {item}", "Icon Call", "Icon Text", "Icon Edit", "Icon Heart"],
            "hearted": ["Title {item}", "Text Favourite", "Icon Call", "Icon Text", "Icon Edit"],
            "edit": ["Field Name", "Field Phone", "Field City", "Button Discard", "Button Save"],
            "saved": ["Text Saved", "Title {item}", "Icon Call", "Icon Text", "Icon Edit"],
        }),
    App("Cabinet", OFFICE,
        ["Invoices", "Photos 2024", "Contracts", "Music", "Scans", "Backups", "School", "Manuals"],
        {
            "root": ["Icon Menu", "Icon Search", "*3", "List Folders", "Icon New folder"],
            "deeper": ["Icon Menu", "Row {item}", "*2", "List Folders"],
            "folder": ["Title {item}", "Row {file}", "Row readme.txt", "Icon New folder", "Icon More"],
            "file": ["Title {file}", "Row Open", "Row Copy", "Row Move", "Row Send"],
            "name": ["Text Folder name", "Field Name", "Button Cancel", "Button Create"],
            "made": ["Text Folder {title} made", "*3", "Icon New folder"],
            "copied": ["Title {item}", "Text 1 file copied", "Row {file}", "Row readme.txt", "Icon Paste"],
            "paste": ["Icon Menu", "Text 1 file copied", "*3", "Icon Paste"],
            "pasted": ["Text Pasted into Folders", "Row {file}", "*2"],
        }),
    App("Chatter", OFFICE,
        ["Family", "Neighbours", "Ana & Bo", "Football", "Class 4b", "Work crew", "Cinema", "小组"],
        {
            "chats": ["Icon Camera", "Icon Search", "*4", "Icon New chat"],
            "chat": ["Title {item}", "Icon Call", "Text See you soon", "Field Message", "Icon Send"],
            "posted": ["Title {item}", "Text See you soon", "Text {text}", "Field Message", "Icon Send"],
            "info": ["Title {item}", "Check Mute", "Row Members", "Row Media", "Row Leave group"],
            "hush": ["Text Mute for", "Row 8 hours", "Row 1 week", "Row Always"],
            "muted": ["Title {item}", "Text Muted {span}", "Check Mute", "Row Members"],
        }),
    App("Basket", HOME,
        ["Oat milk", "Brown rice", "Red lentils", "Green tea", "Olive oil", "Dark bread", "Apples", "Soap"],
        {
            "shop": ["Field Search", "Icon Cart", "*3", "Row Offers"],
            "hits": ["Field {item}", "Row {item} small", "Row {item} large", "Icon Cart"],
            "goods": ["Title {item}", "Text Price", "Row Amount 1", "Button Into cart", "Icon Heart"],
            "amount": ["Row 1", "Row 2", "Row 3", "Row 6", "Button Cancel"],
            "goods2": ["Title {item}", "Text Price", "Row Amount {amount}", "Button Into cart", "Icon Heart"],
            "added": ["Text In the cart", "Button To cart", "Button Keep shopping"],
            "cart": ["Title Cart", "Row {item}", "Field Voucher", "Button Apply", "Button Pay"],
            "applied": ["Title Cart", "Row {item}", "Text Voucher {code} used", "Button Pay"],
        }),
    App("Tunes", HOME,
        ["Rainy jazz", "Morning run", "Old vinyl", "Focus piano", "Kids songs", "Salsa mix", "Night drive", "Folk tales"],
        {
            "home": ["Icon Search", "*4", "Icon Library", "Icon Gear"],
            "mix": ["Title {item}", "Icon Play", "Icon Shuffle", "Icon Save", "Icon Dots"],
            "plays": ["Title {item}", "Icon Pause", "Icon Next", "Icon Timer", "Icon Dots"],
            "timer": ["Text Stop after", "Row 15 minutes", "Row 30 minutes", "Row 1 hour"],
            "timed": ["Title {item}", "Text Stops in {span}", "Icon Pause", "Icon Timer"],
            "dots": ["Row Share", "Row Download", "Row Rename", "Row Remove"],
            "naming": ["Text Mix name", "Field {item}", "Button Cancel", "Button Fine"],
            "named": ["Title {title}", "Icon Play", "Icon Shuffle", "Icon Dots"],
        }),
    App("Bell", HOME,
        ["6:15 weekdays", "7:00 daily", "7:45 Monday", "8:30 Saturday", "9:10 Sunday", "5:50 Friday", "21:00 pills", "22:30 sleep"],
        {
            "alarms": ["Tab Alarm", "Tab Timer", "*3", "Icon Plus"],
            "alarm": ["Title {item}", "Check Active", "Check Vibrate", "Row Sound Chime", "Button OK"],
            "sounds": ["Row Chime", "Row Harp", "Row Rooster", "Row Waves"],
            "alarm2": ["Title {item}", "Check Active", "Check Vibrate", "Row Sound {sound}", "Button OK"],
            "set": ["Text Alarm set", "Tab Alarm", "Tab Timer", "*2"],
            "timers": ["Tab Alarm", "Tab Timer", "Field Label", "Field Minutes", "Button Go"],
            "runs": ["Text {label} runs", "Icon Pause", "Icon Stop", "Tab Alarm"],
        }),
    App("Wayfinder", HOME,
        ["Central station", "City library", "Harbour pool", "North market", "Museum", "Airport", "Old mill", "Zoo"],
        {
            "map": ["Field Where to", "Icon Layers", "Icon Me", "*2"],
            "hits": ["Field {item}", "Row {item}", "Row {item} parking", "Icon Close"],
            "place": ["Title {item}", "Button Route", "Button Save", "Text Open until 8"],
            "route": ["Title {item}", "Tab Car", "Tab Bus", "Tab Bike", "Button Start"],
            "route2": ["Title {item}", "Text By {means}", "Tab Car", "Tab Bus", "Button Start"],
            "going": ["Text Turn left", "Text To {item}", "Icon Sound", "Button End"],
            "lists": ["Text Save to", "Row Home", "Row Want to go", "Row Stars", "Button Done"],
            "kept": ["Title {item}", "Text On list {list}", "Button Route"],
        }),
    App("Kitchen", HOME,
        ["Pea soup", "Lemon cake", "Fish curry", "Bean stew", "Plum jam", "Rye pizza", "Crêpes", "Tofu bowl"],
        {
            "book": ["Icon Search", "*3", "List Dishes", "Icon Mine"],
            "book2": ["Icon Search", "Row {item}", "*2", "List Dishes"],
            "dish": ["Title {item}", "Row Serves 2", "Tab Needs", "Tab Steps", "Icon Note"],
            "serves": ["Row 2", "Row 4", "Row 6", "Row 8"],
            "dish2": ["Title {item}", "Row Serves {amount}", "Tab Needs", "Tab Steps", "Icon Note"],
            "note": ["Text Your note", "Field Note", "Button Drop", "Button Keep"],
            "noted": ["Title {item}", "Text Note: {text}", "Tab Needs", "Tab Steps"],
            "tip": ["Text Rate this app?", "Button Later", "Button Rate"],
        }),
    App("Hearth", HOME,
        ["Kitchen lamp", "Hall light", "Bedroom heat", "Porch lamp", "Fan", "Bath heat", "Desk lamp", "Garage door"],
        {
            "rooms": ["Icon Plus", "*4", "Tab Scenes"],
            "device": ["Title {item}", "Switch Power off", "Row Level 40%", "Row Schedule", "Icon Gear"],
            "device2": ["Title {item}", "Switch Power on", "Row Level 40%", "Row Schedule", "Icon Gear"],
            "levels": ["Row 20%", "Row 40%", "Row 60%", "Row 80%", "Row 100%"],
            "device3": ["Title {item}", "Switch Power on", "Row Level {level}", "Row Schedule"],
            "scenes": ["Tab Rooms", "Row Movie", "Row Away", "Row Dinner", "Icon Plus"],
            "scene": ["Field Scene name", "Row Devices", "Button Cancel", "Button Create"],
            "made": ["Tab Rooms", "Row Movie", "Row Away", "Row {title}", "Icon Plus"],
        }),
]}

# --------------------------------------------------------------------------------------------------------------------
# Tasks: a sentence and the way through the pages. A step is "page: tap Label", "page: type Label = text",
# "page: scroll Label", "page: back" or "page: done".

TASKS = {
    "write-mail": ("Letterbox", "Write to {item} with the subject {subject} and the message {text}", [
        "inbox: tap Write", "write: type To = {item}", "write: type Subject = {subject}", "write: type Message = {text}",
        "write: tap Send", "sent: done"]),
    "archive-mail": ("Letterbox", "Archive the mail from {item} and check the archive", [
        "inbox: tap {item}", "mail: tap Archive", "inbox2: tap Menu", "menu: tap Archive", "archive: done"]),
    "sign-mail": ("Letterbox", "Set my mail signature to {text}", [
        "inbox: tap Menu", "menu: tap Settings", "settings: tap Signature", "signature: type Signature = {text}",
        "signature: tap Save", "settings: done"]),
    "add-entry": ("Dayplan", "Plan {title} on {day}", [
        "week: tap New", "new: type Title = {title}", "new: tap Day Monday", "days: tap {day}", "newset: tap Store",
        "stored: done"]),
    "drop-entry": ("Dayplan", "Delete {item} from the calendar", [
        "week: tap {item}", "entry: tap Delete", "ask: tap Delete", "gone: done"]),
    "add-note": ("Papers", "New note {title} saying {text}", [
        "list: tap Add", "empty: type Title = {title}", "empty: type Body = {text}", "empty: tap Keep", "kept: done"]),
    "rename-note": ("Papers", "Rename the note {item} to {title}", [
        "list: tap {item}", "note: tap More", "more: tap Rename", "rename: type {item} = {title}", "rename: tap OK",
        "renamed: done"]),
    "colour-note": ("Papers", "Make the note {item} {colour}", [
        "list: tap {item}", "note: tap More", "more: tap Colour", "colours: tap {colour}", "coloured: done"]),
    "heart-person": ("Circle", "Make {item} a favourite", [
        "people: tap Search", "search: type Name = {item}", "found: tap {item}", "card: tap Heart", "hearted: done"]),
    "move-person": ("Circle", "Note that {item} now lives in {city}", [
        "people: tap {item}", "card: tap Edit", "edit: type City = {city}", "edit: tap Save", "saved: done"]),
    "copy-file": ("Cabinet", "Copy {file} from {item} to the top folder", [
        "root: scroll Folders", "deeper: tap {item}", "folder: tap {file}", "file: tap Copy", "copied: back",
        "paste: tap Paste", "pasted: done"]),
    "new-folder": ("Cabinet", "Make a folder {title} inside {item}", [
        "root: tap {item}", "folder: tap New folder", "name: type Name = {title}", "name: tap Create", "made: done"]),
    "send-chat": ("Chatter", "Tell {item}: {text}", [
        "chats: tap {item}", "chat: type Message = {text}", "chat: tap Send", "posted: done"]),
    "mute-chat": ("Chatter", "Mute the chat {item} for {span}", [
        "chats: tap {item}", "chat: tap {item}", "info: tap Mute", "hush: tap {span}", "muted: done"]),
    "buy-goods": ("Basket", "Put {amount} large {item} into the cart", [
        "shop: type Search = {item}", "hits: tap {item} large", "goods: tap Amount 1", "amount: tap {amount}",
        "goods2: tap Into cart", "added: done"]),
    "use-voucher": ("Basket", "Add {item} and use the voucher {code}, do not pay", [
        "shop: tap {item}", "goods: tap Into cart", "added: tap To cart", "cart: type Voucher = {code}", "cart: tap Apply",
        "applied: done"]),
    "time-music": ("Tunes", "Play {item} and stop after {span}", [
        "home: tap {item}", "mix: tap Play", "plays: tap Timer", "timer: tap {span}", "timed: done"]),
    "name-mix": ("Tunes", "Call the mix {item} {title} from now on", [
        "home: tap {item}", "mix: tap Dots", "dots: tap Rename", "naming: type {item} = {title}", "naming: tap Fine",
        "named: done"]),
    "wake-sound": ("Bell", "Let the alarm {item} ring with {sound}", [
        "alarms: tap {item}", "alarm: tap Sound Chime", "sounds: tap {sound}", "alarm2: tap OK", "set: done"]),
    "run-timer": ("Bell", "Timer {label} for {amount} minutes", [
        "alarms: tap Timer", "timers: type Label = {label}", "timers: type Minutes = {amount}", "timers: tap Go",
        "runs: done"]),
    "find-route": ("Wayfinder", "Guide me to {item} by {means}", [
        "map: type Where to = {item}", "hits: tap {item}", "place: tap Route", "route: tap {means}", "route2: tap Start",
        "going: done"]),
    "keep-place": ("Wayfinder", "Keep {item} on the list {list}", [
        "map: tap {item}", "place: tap Save", "lists: tap {list}", "lists: tap Done", "kept: done"]),
    "scale-dish": ("Kitchen", "Show {item} for {amount} people", [
        "tip: tap Later", "book: scroll Dishes", "book2: tap {item}", "dish: tap Serves 2", "serves: tap {amount}",
        "dish2: done"]),
    "note-dish": ("Kitchen", "Add the note {text} to {item}", [
        "book: tap {item}", "dish: tap Note", "note: type Note = {text}", "note: tap Keep", "noted: done"]),
    "set-level": ("Hearth", "Switch {item} on at {level}", [
        "rooms: tap {item}", "device: tap Power off", "device2: tap Level 40%", "levels: tap {level}", "device3: done"]),
    "new-scene": ("Hearth", "Create a scene called {title}", [
        "rooms: tap Scenes", "scenes: tap Plus", "scene: type Scene name = {title}", "scene: tap Create", "made: done"]),
}

TRAINED = [
    ("write-mail", {"item": "Anna Hill", "subject": "Key", "text": "The spare key is under the blue pot."}),
    ("archive-mail", {"item": "Rent office", "subject": "March rent"}),
    ("add-entry", {"title": "Piano lesson", "day": "Thursday"}),
    ("drop-entry", {"item": "Chess night"}),
    ("add-note", {"title": "Paint", "text": "Two tins of white, one brush"}),
    ("rename-note", {"item": "Gift ideas", "title": "Gifts for Lola"}),
    ("heart-person", {"item": "Tom Weiß"}),
    ("move-person", {"item": "Grace Obi", "city": "Málaga"}),
    ("copy-file", {"item": "Contracts", "file": "lease-2024.pdf"}),
    ("send-chat", {"item": "Family", "text": "Train is late, start dinner without me"}),
    ("mute-chat", {"item": "Class 4b", "span": "1 week"}),
    ("buy-goods", {"item": "Oat milk", "amount": "6"}),
    ("use-voucher", {"item": "Green tea", "code": "SPRING15"}),
    ("time-music", {"item": "Focus piano", "span": "30 minutes"}),
    ("name-mix", {"item": "Night drive", "title": "Long way home"}),
    ("wake-sound", {"item": "7:45 Monday", "sound": "Rooster"}),
    ("run-timer", {"label": "Eggs", "amount": "7"}),
    ("find-route", {"item": "City library", "means": "Bus"}),
    ("keep-place", {"item": "Old mill", "list": "Want to go"}),
    ("scale-dish", {"item": "Fish curry", "amount": "6"}),
    ("note-dish", {"item": "Lemon cake", "text": "half the sugar is enough"}),
    ("set-level", {"item": "Porch lamp", "level": "80%"}),
    ("new-scene", {"title": "Late reading"}),
]

HELD_OUT = [
    ("sign-mail", {"item": "Book club", "text": "Best wishes, Jo"}),
    ("colour-note", {"item": "Travel notes", "colour": "Green"}),
    ("new-folder", {"item": "Scans", "file": "page1.png", "title": "Receipts"}),
    ("send-chat", {"item": "Football", "text": "Bring the orange shirts"}),
    ("time-music", {"item": "Rainy jazz", "span": "1 hour"}),
    ("buy-goods", {"item": "Red lentils", "amount": "2"}),
]


def _rng(*parts):
    return random.Random(hashlib.sha256("\x1f".join(parts).encode()).digest())


def _point(app, number, control):
    """Centre of a control: fixed by what and where it is, so an unchanged screen reads the same."""
    rng = _rng("point", app, str(number), control)
    return rng.randrange(6, 72), 9 + 13 * number + rng.randrange(0, 5)


def _rows(app, seed, page, count, fill, shown):
    """`count` list rows; `shown` puts {item} among them unless the page already has its row."""
    rng = _rng("rows", app.name, seed, page)
    item = fill.get("item")
    rows = rng.sample([row for row in app.pool if row != item], count)
    if shown and item in app.pool and "Row {item}" not in app.pages[page]:
        rows[rng.randrange(count)] = item
    return [f"Row {row}" for row in rows]


def episode(task_name, fill):
    """All steps of one episode as trace lines."""
    app_name, sentence, way = TASKS[task_name]
    app = APPS[app_name]
    name = f"{app.name.lower()}/{task_name}"
    seed = f"{name} {sorted(fill.items())}"
    history, typed, lines = [], {}, []
    for number, step in enumerate(way):
        page, action = step.format(**fill).split(": ", 1)
        controls = []
        for control in app.pages[page]:
            if control[0] in "*-":
                # A page that must be scrolled does not show the wanted row yet.
                shown = control[0] == "*" and not action.startswith("scroll")
                controls += _rows(app, seed, page, int(control[1:]), fill, shown)
            else:
                controls.append(control.format(**fill))
        lines_on_screen, targets = [], {}
        for i, control in enumerate(controls):
            kind, label = control.split(" ", 1)
            targets.setdefault(label, i)
            x, y = _point(app.name, i, control)
            value = typed.get((page, label))
            lines_on_screen.append(f'[{i}] {kind} "{label}"' + (f' = "{value}"' if value else "") + f" ({x},{y})")
        kind, _, rest = action.partition(" ")
        text = None
        if kind == "type":
            rest, text = rest.split(" = ", 1)
            typed[(page, rest)] = text
        target = targets[rest] if rest else None
        agent = app.agent
        lines.append({
            "app": app.name, "agent": agent.name, "episode": name, "step": number,
            "request": {
                "messages": agent.messages(sentence.format(**fill), app.name, history, lines_on_screen),
                "max_tokens": MAX_TOKENS, "temperature": 0,
                "response_format": {"type": "json_schema", "json_schema": {
                    "name": agent.schema_name, "strict": True, "schema": agent.schema}},
            },
            "expect": agent.answer(kind, target, text),
        })
        verb = agent.keys[kind]
        history.append(verb + (f' "{rest}"' if rest else "") + (f' = "{text}"' if text else ""))
    return lines


def trace(episodes):
    """Both agents work through their own episodes in order, interleaved in runs of one or two requests."""
    queues = {agent.name: [] for agent in (OFFICE, HOME)}
    for task_name, fill in episodes:
        for line in episode(task_name, fill):
            queues[line["agent"]].append(line)
    rng, out, turn = _rng("interleave"), [], 0
    names = list(queues)
    while any(queues.values()):
        queue = queues[names[turn % 2]]
        for _ in range(rng.randrange(1, 3)):
            if queue:
                out.append(queue.pop(0))
        turn += 1
    return out


def trained():
    return trace(TRAINED)


def held_out():
    return trace(HELD_OUT)


def words():
    """Every text the generator can put on a screen apart from the held-out episodes' own words (for the tokenizer)."""
    out = [task[1] for task in TASKS.values()]
    for app in APPS.values():
        out += [app.name, *app.pool, *(control[1:] if control[0] in "*-" else control for p in app.pages.values() for control in p)]
    return out


def write(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def main():
    folder = pathlib.Path(__file__).resolve().parent.parent / "traces"
    folder.mkdir(exist_ok=True)
    for name, lines in (("demo.jsonl", trained()), ("heldout.jsonl", held_out())):
        write(folder / name, lines)
        print(f"{name}: {len(lines)} steps, {len({line['episode'] for line in lines})} episodes")


if __name__ == "__main__":
    main()
