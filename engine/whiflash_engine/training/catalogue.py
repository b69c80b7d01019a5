"""More topics, made by crossing short lists: breadth is what a drafter trained on few tokens lacks most.

The first list of each pair is the topic, the unit of the train/held-out split; the second says what is asked
about it. Edits are about short functions of Python's own standard library, read from the running interpreter.
"""

import ast
import importlib
import inspect
import random
from collections.abc import Iterator
from textwrap import dedent

SUBJECTS: tuple[str, ...] = (
    "bicycles", "honesty", "the Amazon river", "coffee", "volunteering", "space telescopes", "gardens",
    "sharks", "the violin", "camping", "friendship", "the French Revolution", "solar panels", "snow",
    "museums", "football", "penguins", "the human brain", "chocolate", "bridges", "owls", "the stock market",
    "kindness", "ancient Egypt", "yoga", "elephants", "the internet", "poetry", "earthquakes", "pasta",
    "photography", "wolves", "democracy", "the piano", "rice", "glaciers", "theatre", "dolphins", "insurance",
    "the Renaissance", "running", "spiders", "artificial intelligence", "maps", "bread", "rivers", "patience",
    "ballet", "the planet Mars", "cheese", "teamwork", "horses", "the printing press", "climate change",
    "card games", "whales", "India", "comic books", "the immune system", "fishing", "courage", "batteries",
    "apples", "the Industrial Revolution", "jazz", "butterflies", "time management", "castles", "tennis",
    "salt", "mountains", "robots", "grandparents", "the Great Wall of China", "meditation", "frogs",
    "advertising", "painting", "oceans", "taxes", "wind turbines", "dinosaurs", "weddings", "Brazil", "steel",
    "sleep", "parrots", "newspapers", "sailing", "the alphabet", "potatoes", "stress", "satellites", "forests",
    "cooking", "knitting", "the Roman Empire", "trains", "eagles", "saving money", "paper", "basketball",
    "languages", "the digestive system", "gold", "crowded cities", "turtles", "opera", "vitamins",
    "secondhand clothes", "Japan", "radio", "soil", "chess clubs", "lions", "the Moon", "curiosity", "sugar",
    "submarines", "school uniforms", "bats", "watches", "glass", "the Vikings", "hiking", "soup", "ants",
    "online shopping", "lightning", "the guitar", "moving to another country", "zoos", "sculpture", "Kenya",
    "privacy", "strawberries", "universities", "the Sun", "cycling to work", "video games", "hospitals",
    "mushrooms", "clouds", "gratitude", "deserts of Africa", "bakeries", "handwriting", "the Arctic",
    "electric guitars", "pottery", "Mexico", "foxes", "swimming pools", "genes", "leadership", "wool",
    "astronauts", "board games", "the Middle Ages", "fireworks", "olive oil", "orchestras", "moths", "Canada",
)  # fmt: skip
ASPECTS: tuple[str, ...] = (
    "Tell me about the history of {t}.", "Why do people care about {t}?",
    "Write a short introduction to {t} for beginners.", "What are common questions about {t}?",
    "Write a short essay on {t}.", "What are the advantages and disadvantages of {t}?",
    "Write a story in which {t} play a part.", "Explain how {t} changed the world.",
    "Give me advice about {t}.", "What should a visitor know about {t}?", "Describe {t} in simple words.",
    "What will {t} look like in the future?", "Write a blog post about {t}.",
    "List ten interesting facts about {t}.", "Write a speech about {t}.", "Write a letter about {t}.",
    "How does {t} affect daily life?", "What is the most important thing to know about {t}?",
)  # fmt: skip

COMPONENTS: tuple[str, ...] = (
    "the login page", "the payment service", "a search endpoint", "the job scheduler", "a CSV importer",
    "the mobile app", "a message queue", "the image resizer", "the nightly backup", "a chat server",
    "the user profile page", "a command-line tool", "the report generator", "a web crawler", "the mail sender",
    "the build server", "a rate limiter", "the shopping basket", "an XML parser", "the file uploader",
    "a load balancer", "the notification service", "the recommendation engine", "a date picker",
    "the session store", "a plugin loader", "the audit log", "a template renderer", "the database connection",
    "a spell checker",
)  # fmt: skip
SYMPTOMS: tuple[str, ...] = (
    "{t} fails once in a hundred requests", "{t} became slow after the last release",
    "{t} works on my machine but not in production", "{t} uses more and more memory",
    "{t} returns an empty result for some users", "{t} stops with a timeout", "{t} needs a redesign",
    "{t} must handle ten times the load", "{t} writes the same record twice", "{t} has no tests",
    "{t} shows text with broken characters", "{t} raises KeyError: 'id'", "{t} should be rewritten in Rust",
    "{t} breaks when the network is down",
)  # fmt: skip
SUMS: tuple[str, ...] = (
    "A shop sells {a} pens at {b} dollars each. How much money does it take?",
    "Tom has {a} marbles and gives {c} to his sister. How many are left?",
    "A car drives {b} km every hour. How far does it go in {c} hours?",
    "A room is {c} metres long and {d} metres wide. What is its area?",
    "A book has {a} pages. Anna reads {c} pages a day. How long does she need?",
    "What is {c} percent of {a}?", "There are {c} boxes with {d} eggs each. How many eggs are there?",
    "A worker earns {b} dollars an hour and works {c} hours. What is the pay?",
    "A train leaves at {d}:15 and takes {c} hours. When does it arrive?",
    "A farmer plants {c} rows of {d} trees; {e} trees die. How many live?",
    "A bottle holds {a} ml. How many glasses of {b} ml can be filled?",
    "Lisa is {d} years old; her brother is twice as old plus {e}. How old is he?",
    "A ticket costs {b} euros, children pay half. What do {e} adults and {d} children pay?",
    "Water flows in at {c} litres a minute and out at {e}. How full is the tank after {d} minutes?",
    "A phone costs {a} dollars and is {c} percent cheaper today. What is the price?",
    "The mean of {a}, {b} and {c} is needed. What is it?",
)  # fmt: skip

STRUCTURES: tuple[str, ...] = (
    "a singly linked list", "a binary search tree", "a directed graph", "a hash table", "a matrix",
    "a sorted list", "a deque", "a min-heap", "a trie", "a ring buffer", "a set of integers",
    "a list of intervals", "a dictionary of lists", "a list of tuples", "a two-dimensional grid",
    "a list of strings", "a string", "a nested dictionary", "a polynomial", "a text buffer",
)  # fmt: skip
OPERATIONS: tuple[str, ...] = (
    "inserts an element into {t}", "removes an element from {t}", "searches {t}",
    "counts the elements of {t}", "prints {t} in reverse order", "copies {t}", "compares two of: {t}",
    "checks whether {t} is empty", "finds the largest element of {t}", "converts {t} to JSON", "sorts {t}",
    "splits {t} in two", "sums up {t}", "yields the elements of {t} one by one", "merges two of: {t}",
)  # fmt: skip
DOMAINS: tuple[str, ...] = (
    "library book", "student", "employee", "parking lot", "to-do item", "song", "warehouse item", "recipe",
    "calendar event", "chat message", "elevator", "vending machine", "hotel room", "weather reading", "quiz",
    "car", "invoice", "movie", "flight", "patient", "pet", "customer", "sensor", "game player", "tweet",
    "exam grade", "phone contact", "pizza order", "traffic light", "blog post",
)  # fmt: skip
USES: tuple[str, ...] = (
    "models a {t} as a class", "stores {t} records in SQLite", "validates the data of a {t}",
    "prints a table of {t} records", "loads {t} records from a CSV file", "sorts {t} records by date",
    "filters {t} records by a field", "simulates a {t}", "compares two {t} objects",
    "creates random {t} records for a test", "updates one {t} record", "groups {t} records by a key",
)  # fmt: skip

_MODULES = (
    "textwrap", "statistics", "shutil", "fnmatch", "calendar", "heapq", "bisect", "random", "posixpath",
    "difflib", "string", "colorsys", "copy", "functools", "collections", "fractions", "glob", "html",
    "json.decoder", "json.encoder", "keyword", "linecache", "mimetypes", "operator", "pprint", "queue",
    "reprlib", "sched", "shlex", "stat", "tempfile", "timeit", "tokenize", "types", "uuid", "zipfile",
    "argparse", "configparser", "contextlib", "csv", "datetime", "inspect", "logging", "gettext", "locale",
    "urllib.parse", "http.cookies", "email.utils", "ipaddress", "getopt", "cmd", "code", "dis", "enum",
)  # fmt: skip
_CHANGES = (
    "add a docstring", "add type hints to every argument", "raise ValueError when the first argument is None",
    "rename its first argument to value", "add a comment to every step", "log a message at the start",
    "make it return early when there is nothing to do", "give its last argument a default of None",
)  # fmt: skip
_LINES = range(4, 15)
_PER_MODULE = 4

_CITIES = ("Paris", "Lima", "Oslo", "Sydney", "Boston", "Delhi", "Rome", "Toronto", "Seoul", "Vienna", "Miami")
_PEOPLE = ("ana", "bob", "carla", "david", "emma", "felix", "greta", "hugo", "ines", "jack")
_FILES = ("src/app.py", "tests/test_views.py", "lib/cache.py", "docs/index.md", "core/query.py", "setup.cfg")
_NAMES = ("parse_date", "get_user", "total", "MAX_SIZE", "render", "load_config", "items", "Query", "timeout")
_THINGS = ("bread", "a lamp", "batteries", "two notebooks", "tea", "a blue shirt", "running shoes", "an umbrella")
_REQUESTS: tuple[tuple[str, str], ...] = (
    ("Find where {name} is defined.", "bash"), ("Run only the tests in {file}.", "bash"),
    ("Count how often {name} occurs in {file}.", "bash"), ("Show who changed {file} last.", "bash"),
    ("Open {file} at line {n}.", "view"), ("Show {file}.", "view"), ("Let me see {name} in {file}.", "view"),
    ("In {file} rename {name} to {name}_v2.", "edit"), ("In {file} set {name} to {n}.", "edit"),
    ("Remove the call of {name} from {file}.", "edit"), ("I have fixed {name}, we are done.", "submit"),
    ("What is the weather like in {city}?", "get_weather"), ("Is it cold in {city} now?", "get_weather"),
    ("Book a table for {n} at Cafe {city} at {h} pm.", "book_table"),
    ("Tell {person}@example.com that the trip to {city} is cancelled.", "send_email"),
    ("Mail {person}@example.com the report on {thing}.", "send_email"),
    ("Search for hotels in {city}.", "search"), ("Search for the price of {thing}.", "search"),
    ("Convert {n} miles to kilometres.", "convert"), ("How many pounds are {n} kilograms?", "convert"),
    ("Flights from {city} to London on the {h}th of July, please.", "find_flights"),
    ("Cancel my reservation R{n}{h}, I am ill.", "cancel_reservation"),
    ("Remind me at {h} am to buy {thing}.", "add_reminder"), ("Put {thing} on the shopping list.", "add_items"),
    ("What is '{thing}' in Spanish?", "translate"), ("Show the account of {person}_{n}.", "get_user"),
)  # fmt: skip


def crossed(
    topics: tuple[str, ...], forms: tuple[str, ...], per_topic: int, rng: random.Random
) -> Iterator[tuple[str, str]]:
    """Yield (topic, text): ``per_topic`` different forms of each topic."""
    for topic in topics:
        for form in rng.sample(forms, per_topic):
            yield topic, form.format(t=topic)


def sums(per_form: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (topic, text) of small word problems; the topic is the problem, whatever its numbers."""
    for form in SUMS:
        for _ in range(per_form):
            numbers = {"a": rng.randint(60, 400), "b": rng.randint(20, 60), "c": rng.randint(9, 30)}
            yield form, form.format(**numbers, d=rng.randint(5, 12), e=rng.randint(2, 5))


def tool_requests(per_form: int, rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """Yield (topic, request, name of the tool that fits)."""
    for form, tool in _REQUESTS:
        for _ in range(per_form):
            text = form.format(
                name=rng.choice(_NAMES), file=rng.choice(_FILES), city=rng.choice(_CITIES),
                person=rng.choice(_PEOPLE), thing=rng.choice(_THINGS), n=rng.randint(2, 90), h=rng.randint(1, 12),
            )  # fmt: skip
            yield form, text, tool


def library_edits(rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """Yield (file name, code, change) for short functions of the standard library; the file is the topic.

    Which functions those are depends on the Python version.
    """
    for name in _MODULES:
        module = importlib.import_module(name)
        source = inspect.getsource(module)
        lines = source.splitlines()
        functions = [
            dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 in _LINES
        ]
        for code in rng.sample(functions, min(_PER_MODULE, len(functions))):
            yield f"{name.rpartition('.')[2]}.py", code, rng.choice(_CHANGES)
