"""What ``advisor ui`` serves: the pages of ``app.py``, with Streamlit's front end from memory."""

from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from advisor.views.front_end import FrontEnd

app = st.App(Path(__file__).with_name("app.py"), middleware=[Middleware(FrontEnd)])
