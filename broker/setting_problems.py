"""Says in words what is wrong with the value of a setting. Pydantic finds it, and its own texts are for programmers.

Pure.
"""

from pydantic_core import ErrorDetails


def problem_of(details: ErrorDetails) -> str:
    """Return why a value is none for its setting, as the end of a sentence."""
    context = details.get("ctx", {})
    match details["type"]:
        case "value_error":
            return str(context["error"])
        case "bool_parsing" | "bool_type":
            return "it must be true or false"
        case "int_parsing" | "int_type" | "int_from_float":
            return "it must be a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "it must be a number"
        case "byte_size" | "byte_size_unit":
            return "it must be a size such as 64MiB"
        case "greater_than_equal":
            return f"it must be at least {context['ge']:,.15g}"
        case "greater_than":
            return f"it must be greater than {context['gt']:,.15g}"
        case "less_than_equal":
            return f"it must be at most {context['le']:,.15g}"
        case "path_type" | "string_type":
            return "it must be text"
        case "literal_error":
            return f"it must be {str(context['expected']).replace(chr(39), '')}"
        case "string_pattern_mismatch":
            return "it must be 1 to 64 letters, digits and . _ - and begin with a letter or digit"
        case _:
            return details["msg"][0].lower() + details["msg"][1:]


def shown(value: object) -> str:
    """Return a value as it was given, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "…"
