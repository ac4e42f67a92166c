# docker build -t advisor . && docker run -p 8501:8501 advisor
# The small image has no torch; --build-arg EXTRAS='[probe]' adds the probe, '[postgres]' PostgreSQL, '[login]' logins, '[probe,postgres,login]' all.
FROM python:3.12-slim
ARG EXTRAS=""
RUN useradd --create-home --uid 1000 advisor
WORKDIR /app
COPY pyproject.toml README.md constraints.txt ./
COPY advisor advisor
COPY pages pages
COPY knowledge knowledge
RUN pip install --no-cache-dir -c constraints.txt ".${EXTRAS}"
USER advisor
WORKDIR /home/advisor
ENV PYTHONDONTWRITEBYTECODE=1 STREAMLIT_BROWSER_GATHER_USAGE_STATS=false
EXPOSE 8501
# Below a path (STREAMLIT_SERVER_BASE_URL_PATH) the server answers there alone.
HEALTHCHECK --interval=30s --timeout=3s --start-period=30s CMD ["python", "-c", "import os, urllib.request as u; b = os.environ.get('STREAMLIT_SERVER_BASE_URL_PATH', '').strip('/'); u.urlopen('http://127.0.0.1:8501' + (b and '/' + b) + '/_stcore/health', timeout=2)"]
ENTRYPOINT ["advisor", "ui", "--port", "8501", "--address", "0.0.0.0"]
